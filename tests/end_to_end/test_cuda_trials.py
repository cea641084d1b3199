"""Real trials on a real CUDA card: by turns, in rotation, with graphs and streams of the script's own, and applied.

They share a card with whatever runs beside them: nothing here goes by how fast it is, but for what is marked "timed".
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tuner.child.records import Block, Phase, Window
from tuner.devices.base import DeviceKind
from tuner.devices.present import kind_of, resolve_device
from tuner.model import Config, Outcome, OutcomeKind, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.storage.records import read_records

pytestmark = pytest.mark.cuda
GIB = 2**30
SHORT = Window(warmup_steps=4, warmup_s=0.3, block_s=0.05, max_s=0.8)
LOOP = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    device = torch.device("cuda")
    data = TensorDataset(torch.randn(4096, 4, 8, 8), torch.randint(0, 4, (4096,)))
    loader = DataLoader(data, batch_size=64, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(4, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(576, 4)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    steps = 0
    while steps < 10**6:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
"""
Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The card's memory doesn't come back to what it was while other tests take some."""
    monkeypatch.setattr(DeviceKind, "wait_until_clean", lambda *given: True)


def request_for(folder: Path, script: Path, config: dict[str, Any] | None = None, **changes: Any) -> TrialRequest:
    of_any = TrialRequest(
        folder, Script(str(script), ()), resolve_device("cuda"), Config(config or {}), window=SHORT,
        limits=Limits(trial_timeout_s=90.0),
    )  # fmt: skip
    return replace(of_any, **changes)


def run(request: TrialRequest) -> Outcome:
    return ProcessRunner().run(request, threading.Event())


def told(outcome: Outcome) -> str:
    return f"{outcome.kind}: {outcome.detail} {outcome.traceback_text}"


# Several at once


def test_two_trials_take_turns_on_one_card(tmp_path: Path, write_script: Write) -> None:
    """Each waits for the card before it is held: no block of one overlaps one of the other. Samples count in both."""
    script = write_script(LOOP)
    requests = [
        request_for(tmp_path / f"{number:04d}", script, config, window=replace(SHORT, max_s=1.5))
        for number, config in enumerate(({}, {"optimizer": "fused"}))
    ]
    found = ProcessRunner().run_by_turns(requests, threading.Event())
    assert not found.obstacle and all(outcome.complete for outcome in found.outcomes), [*map(told, found.outcomes)]
    spans = []
    for request, outcome in zip(requests, found.outcomes, strict=True):
        entries = read_records(request.folder / "records.jsonl")
        blocks = [(e.t, e.record) for e in entries if isinstance(e.record, Block) and e.record.phase is Phase.WINDOW]
        assert all(block.samples > 60 * block.steps > 0 for _, block in blocks)
        spans += [(t - block.seconds, t) for t, block in blocks]
        assert outcome.measurement is not None and outcome.measurement.turns >= 4
    gaps = [later[0] - before[1] for before, later in itertools.pairwise(sorted(spans))]
    assert min(gaps) > -0.005, "a block is sent just after it has ended"
    assert found.outcomes[1].measurement is not None
    assert found.outcomes[1].measurement.reference is not None, "it is held against the script as written"


IN_ROTATION = (
    Config(precision="bf16"), Config(precision="tf32"), Config(channels_last=True), Config(optimizer="fused"),
    Config(pin_memory=True), Config(num_workers=2, pin_memory=True), Config(cudnn_benchmark=True),
    Config(precision="bf16", channels_last=True, optimizer="fused"),
)  # fmt: skip


def rotated(folder: Path, script: Path, *configs: Config) -> Outcome:
    window = replace(SHORT, max_s=1000.0)
    return run(request_for(folder, script, window=window, rotation=configs))


def of_no_fault(outcome: Outcome) -> None:
    assert outcome.kind is OutcomeKind.COMPLETE, told(outcome)
    faults = {str(each.config): each.fault for each in outcome.rotation if each.fault}
    assert outcome.rotation and all("far behind" in fault for fault in faults.values()), faults


def test_every_knob_that_is_switched_takes_effect_in_a_rotation(tmp_path: Path, write_script: Write) -> None:
    of_no_fault(rotated(tmp_path / "trial", write_script(LOOP), *IN_ROTATION))


def test_what_is_compiled_in_a_rotation_runs_in_its_turns(tmp_path: Path, write_script: Write) -> None:
    configs = (Config(compile="default"), Config(compile="default", precision="bf16"))
    of_no_fault(rotated(tmp_path / "trial", write_script(LOOP), *configs))


# CUDA graphs


KEEPS_GRADIENTS = LOOP.replace("zero_grad()", "zero_grad(set_to_none=False)")


@pytest.mark.parametrize("config", [{}, {"grad_accumulation": 2}], ids=str)
def test_gradients_that_are_kept_outlive_replayed_graphs(
    run_child: Callable[..., Any], write_script: Write, config: dict[str, Any]
) -> None:
    """A replay writes its gradients where those of the last one lay."""
    script = write_script(KEEPS_GRADIENTS)
    ran = run_child(script, {"compile": "reduce-overhead", **config}, device="cuda:0", window={"max_s": 3.0})
    assert ran.of("window")[0]["complete"], ran.output[-2000:]
    assert ran.evidence("compile") == "verified", ran.of("knob")


def test_a_model_that_the_script_captures_is_left_alone(tmp_path: Path, write_script: Write) -> None:
    """Its calls are looked at for a rotation that compiles; in a capture nothing may be read. Its steps count."""
    captures = "model = torch.cuda.make_graphed_callables(model, (torch.zeros(64, 4, 8, 8, device=device),))"
    script = write_script(LOOP.replace("steps = 0\n", f"{captures}\n    steps = 0\n"))
    plain = run(request_for(tmp_path / "plain", script))
    assert plain.complete, told(plain)
    assert plain.measurement is not None and plain.measurement.unit == "samples"
    outcome = rotated(tmp_path / "rotation", script, Config(compile="default"), Config(optimizer="fused"))
    assert outcome.kind is OutcomeKind.INFEASIBLE, told(outcome)
    assert "no rotation: it replays CUDA graphs" in outcome.detail


CAPTURES_STEP = """
    import torch
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = torch.nn.Linear(64, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(32, 64, device=device), torch.randn(32, 1, device=device)
    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    first = float(step())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        last = step()
    for _ in range(200):
        graph.replay()
    assert float(last) < first, "it trains"
    print("replayed")
"""


def test_a_step_that_the_script_captures_is_captured(run_child: Callable[..., Any], write_script: Write) -> None:
    """However short blocks are: none ends within the capture, which it would break. With a seed each step is looked at.
    """
    window = {"block_s": 0.0, "warmup_s": 0.0, "warmup_steps": 0, "max_s": 60.0, "min_blocks": 10**6}
    for seed in (None, 3):
        ran = run_child(write_script(CAPTURES_STEP), device="cuda:0", window=window, seed=seed)
        assert ran.returncode == 0 and "replayed" in ran.output, ran.output[-2000:]


# What the script compiles itself


OWN = """
    class Model(nn.Sequential):  # of a class of torch.nn itself model.compile() compiles nothing
        def forward(self, x):
            for layer in self:
                x = layer(x)
            return x
    model = torch.compile(Model(*model))
    steps = 0
"""
COMPILES = LOOP.replace("    steps = 0\n", OWN.removeprefix("\n"))
HOLDS = COMPILES.replace(
    "loss = nn.functional.cross_entropy(model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True))",
    """out = CALLED(x.to(device))
            assert steps == 0 or bool(torch.isfinite(before.sum()))  # an output of the step before is read
            before = out
            loss = nn.functional.cross_entropy(out, y.to(device))""",
)
AS_LIGHTNING = (
    "torch.compile(Model(*model))", "Model(*model); called = torch.compile(model).dynamo_ctx(model.forward)",
)  # fmt: skip


@pytest.mark.parametrize("mode", ["off", "default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_each_mode_of_what_a_script_compiles_itself_takes_effect(
    run_child: Callable[..., Any], write_script: Write, mode: str
) -> None:
    ran = run_child(write_script(COMPILES), {"compile_mode": mode}, device="cuda:0", window={"max_s": 3.0})
    assert ran.of("window")[0]["complete"], ran.output[-2000:]
    assert ran.evidence("compile_mode") == "verified", ran.of("knob")
    assert bool(ran.of("compile")) is (mode != "off")


@pytest.mark.parametrize("compiled", ["torch.compile(model)", "model.compile() or model"])
def test_outputs_of_what_a_script_compiles_itself_outlive_a_replay(
    run_child: Callable[..., Any], write_script: Write, compiled: str
) -> None:
    """It wasn't written for CUDA graphs, and reads what its model gave in the step before."""
    compiles = f"model = Model(*model)\n    model = {compiled}"
    script = write_script(HOLDS.replace("CALLED", "model").replace("model = torch.compile(Model(*model))", compiles))
    ran = run_child(script, {"compile_mode": "reduce-overhead"}, device="cuda:0", window={"max_s": 3.0})
    assert ran.of("window")[0]["complete"], ran.output[-2000:]
    assert ran.evidence("compile_mode") == "verified", ran.of("knob")


def test_an_output_that_a_replay_wrote_over_is_no_fault_of_the_users(tmp_path: Path, write_script: Write) -> None:
    """Where the script calls it in a way that no copy is made in."""
    script = write_script(HOLDS.replace("CALLED", "called").replace(*AS_LIGHTNING))
    outcome = run(request_for(tmp_path / "trial", script, {"compile_mode": "reduce-overhead"}))
    assert (outcome.kind, outcome.reason) == (OutcomeKind.INFEASIBLE, "overwritten"), told(outcome)
    assert outcome.detail == "RuntimeError: accessing tensor output of CUDAGraphs that has been overwritten by a" \
        " subsequent run"


# Streams


PREFETCHES = """
    import sys, time, torch
    from torch.utils.data import DataLoader, TensorDataset
    def collate(rows):
        time.sleep(0.005)
        return torch.utils.data.default_collate(rows)
    class Prefetcher:  # as in NVIDIA's examples
        def __init__(self, loader):
            self.batches, self.stream = iter(loader), torch.cuda.Stream()
            self.preload()
        def preload(self):
            with torch.cuda.stream(self.stream):
                self.next = next(self.batches, None)
                if self.next is not None:
                    self.next = [each.to("cuda", non_blocking=True) for each in self.next]
        def give(self):
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.next
            if batch is not None:
                for each in batch:
                    each.record_stream(torch.cuda.current_stream())
                self.preload()
            return batch
    data = TensorDataset(torch.ones(4000, 4), torch.ones(4000, 1))
    loader = DataLoader(data, batch_size=4, collate_fn=collate, pin_memory=True)
    model = torch.nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begun = time.perf_counter()
    torch.cuda._sleep(10**8)
    torch.cuda.synchronize()
    cycles = int(0.02 * 10**8 / (time.perf_counter() - begun))
    for epoch in range(1000):
        batches = Prefetcher(loader)
        while (batch := batches.give()) is not None:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
            optimizer.step()
            torch.cuda._sleep(cycles)
"""


@pytest.mark.timed
def test_what_is_fetched_in_another_stream_is_no_wait(run_child: Callable[..., Any], write_script: Write) -> None:
    """The card is given 20 ms of work with each step, and the loop fetches for 5 ms meanwhile."""
    ran = run_child(write_script(PREFETCHES), device="cuda:0")
    window = [block for block in ran.of("block") if block["phase"] == "window"]
    assert sum(block["samples"] for block in window) == 4 * sum(block["steps"] for block in window) > 0
    assert sum(block["wait_s"] for block in window) / sum(block["seconds"] for block in window) < 0.15


# Memory, and what the driver tells


def test_a_peak_that_the_script_resets_is_told(run_child: Callable[..., Any], write_script: Write) -> None:
    early = (
        "big = torch.zeros(2**31, dtype=torch.uint8, device=device); del big; torch.cuda.empty_cache()\n"
        "    torch.cuda.reset_peak_memory_stats(); assert torch.cuda.max_memory_reserved() < 2**30"
    )
    ran = run_child(write_script(LOOP.replace("steps = 0\n", f"{early}\n    steps = 0\n")), device="cuda:0")
    assert ran.of("window")[0]["complete"], ran.output[-2000:]
    memory = ran.of("memory")[-1]
    assert min(memory["reserved"], memory["allocated"]) >= 2 * GIB


def test_energy_and_clock_of_the_card_that_a_script_chooses_are_told(tmp_path: Path, write_script: Write) -> None:
    """It may choose it by the environment: by the number that stands there."""
    chooses = "import os; os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['CUDA_VISIBLE_DEVICES'].split(',')[0]"
    text = LOOP.replace("import torch\n", f"{chooses}; import torch\n", 1).replace('device("cuda")', 'device("cuda:0")')
    card, window = resolve_device("cuda"), replace(SHORT, max_s=5.0, min_s=5.0)
    outcome = run(request_for(tmp_path / "trial", write_script(text), {"precision": "bf16"}, window=window))
    assert outcome.complete and outcome.measurement is not None, told(outcome)
    joules = outcome.measurement.energy.device_joules_per_sample
    if kind_of(card).why_no_energy(card):
        assert joules is None
    else:
        assert joules is not None and joules > 0
    assert outcome.measurement.card is not None and outcome.measurement.card.readings > 1
    assert outcome.measurement.card.sm_mhz is None or outcome.measurement.card.sm_mhz > 100
    assert [report.evidence for report in outcome.measurement.knobs] == ["verified"]


# Applied


@pytest.mark.parametrize(
    "config",
    [
        {
            "precision": "bf16", "channels_last": True, "optimizer": "fused", "cudnn_benchmark": True,
            "pin_memory": True, "num_workers": 1,
        },
        {"precision": "tf32", "compile": "reduce-overhead"},
    ],
    ids="+".join,
)  # fmt: skip
def test_a_run_says_what_is_in_effect_on_the_card(
    run_child: Callable[..., Any], write_script: Write, config: dict[str, Any]
) -> None:
    script = write_script(LOOP.replace("10**6", "60"))
    ran = run_child(script, config, device="cuda:0", mode="apply")
    said = [line for line in ran.output.splitlines() if line.startswith("autotune: after")]
    assert ran.returncode == 0 and len(said) == 1, ran.output[-2000:]
    assert "NOT" not in said[0] and all(knob in said[0] for knob in config)
