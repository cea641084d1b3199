"""The child on a real CUDA device: memory, its cap, number formats, pinned batches, fused updates, compilation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tuner.devices.present import kind_of, resolve_device

pytestmark = pytest.mark.cuda

TRAIN = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    WIDTH = 512
    model = torch.nn.Sequential(
        torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 64, WIDTH),
        torch.nn.Linear(WIDTH, 10),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(2048, 4, 8, 8), torch.randint(0, 10, (2048,)))
    loader = DataLoader(data, batch_size=64, shuffle=True)
    for epoch in range(10_000):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
LOADER = {"training_loaders": ["train.py:11#0"]}


@pytest.fixture
def trained(run_child: Callable[..., Any], write_script: Callable[..., Path]) -> Callable[..., Any]:
    """A trial on the GPU."""

    def run(config: dict[str, Any] | None = None, text: str = TRAIN, **options: Any) -> Any:
        card = resolve_device("cuda")
        used = kind_of(card).used_bytes(card) or 0
        return run_child(
            write_script(text), config, device="cuda:0", knowledge=LOADER, used_device_bytes=used, **options
        )

    return run


@pytest.mark.timed  # alone on the card: what others take while it runs can't be told apart
def test_memory_is_reported_and_formats_are_offered(trained: Callable[..., Any]) -> None:
    ran = trained()
    memory = ran.of("memory")[-1]
    assert memory["reserved"] > 0
    assert 0 < memory["overhead"] < 2**30
    assert memory["total"] == torch.cuda.get_device_properties(0).total_memory
    assert "fp32" in ran.facts["precisions"]
    assert ran.facts["unit"] == "samples"


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("precision", "tf32"), ("precision", "bf16"), ("precision", "fp16"), ("pin_memory", True),
        ("channels_last", True), ("optimizer", "fused"), ("optimizer", "foreach"), ("cudnn_benchmark", True),
        ("num_workers", 2), ("compile", "default"), ("compile", "reduce-overhead"),
    ],
)  # fmt: skip
def test_every_knob_takes_effect(trained: Callable[..., Any], knob: str, value: Any) -> None:
    ran = trained({knob: value}, window={"max_s": 5.0})
    assert ran.of("window")[0]["complete"]
    assert ran.evidence(knob) == "verified"


ATTENDS = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.given, self.head = torch.nn.Linear(64, 192), torch.nn.Linear(64, 1)
        def forward(self, x):
            q, k, v = self.given(x).view(*x.shape[:2], 3, 2, 32).permute(2, 0, 3, 1, 4)
            attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.head(attended.transpose(1, 2).reshape(x.shape)).mean(1)

    model = Model().cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(512, 128, 64, dtype=torch.bfloat16), torch.ones(512, 1, dtype=torch.bfloat16))
    for epoch in range(10**6):
        for x, y in DataLoader(data, batch_size=32):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
"""


def test_each_attention_that_is_offered_runs(
    run_child: Callable[..., Any], write_script: Callable[..., Path]
) -> None:
    script = write_script(ATTENDS)
    facts = run_child(script, device="cuda:0").facts
    assert facts["as_written"]["attention"] in facts["attention_choices"]
    assert {"flash", "efficient", "math"} <= set(facts["attention_choices"])
    for choice in facts["attention_choices"]:
        ran = run_child(script, {"attention": choice}, device="cuda:0")
        assert ran.evidence("attention") == "verified", ran.of("knob")


REPEATS = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.back = torch.nn.Linear(64, 2048), torch.nn.Linear(2048, 64)
        def forward(self, x):
            return x + self.back(torch.nn.functional.dropout(torch.relu(self.wide(x)), 0.1, self.training))

    model = torch.nn.Sequential(*(Block() for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(2**14, 64), torch.randn(2**14, 64))
    for epoch in range(10**6):
        for x, y in DataLoader(data, batch_size=4096):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
"""


def test_checkpointing_spares_the_cards_memory_and_draws_the_same(
    run_child: Callable[..., Any], write_script: Callable[..., Path]
) -> None:
    script = write_script(REPEATS)
    screen = {"until_samples": 40 * 4096.0, "warmup_s": 0.0, "block_s": 0.0}  # losses of the same steps
    plain, spared = (
        run_child(script, config, device="cuda:0", seed=3, window=screen) for config in ({}, {"checkpointing": True})
    )
    assert spared.evidence("checkpointing") == "verified", spared.of("knob")
    assert spared.of("memory")[-1]["allocated"] < 0.6 * plain.of("memory")[-1]["allocated"]
    losses = [[record["value"] for record in ran.of("loss")] for ran in (plain, spared)]
    assert losses[0] and losses[1] == pytest.approx(losses[0], rel=1e-5), "dropout draws from the card's generator"


def test_the_cap_is_the_allocators_own(trained: Callable[..., Any]) -> None:
    hungry = TRAIN.replace("WIDTH = 512", "WIDTH = 2**18")  # half a GiB of weights, and as much again thrice
    ran = trained({"precision": "fp32"}, hungry, max_device_bytes=256 * 2**20)
    text = ran.of("exception")[-1]["text"] if ran.of("exception") else str(ran.of("failure"))
    assert "out of memory" in text.lower() or "device-oom" in text


WAITS = """
    import sys, time, torch
    from torch.utils.data import DataLoader, TensorDataset
    def collate(rows):
        time.sleep(0.005)
        return torch.utils.data.default_collate(rows)
    data = TensorDataset(torch.ones(4000, 4), torch.ones(4000, 1))
    loader = DataLoader(data, batch_size=4, collate_fn=collate)
    model = torch.nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begun = time.perf_counter()
    torch.cuda._sleep(10**8)
    torch.cuda.synchronize()
    cycles_per_s = 10**8 / (time.perf_counter() - begun)
    for epoch in range(1000):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
            torch.cuda._sleep(int(float(sys.argv[1]) * cycles_per_s))
"""


@pytest.mark.timed
@pytest.mark.parametrize(("work_s", "least", "most"), [("0.02", 0.0, 0.1), ("0.0001", 0.6, 1.0)])
def test_a_fetch_that_the_card_does_not_notice_is_no_wait(
    run_child: Callable[..., Any], write_script: Callable[..., Path], work_s: str, least: float, most: float
) -> None:
    """The loop fetches for 5 ms, of which the card notices nothing where it is given 20 ms of work with each step."""
    ran = run_child(write_script(WAITS), argv=(work_s,), device="cuda:0")
    window = [block for block in ran.of("block") if block["phase"] == "window"]
    assert least <= sum(b["wait_s"] for b in window) / sum(b["seconds"] for b in window) <= most
