"""A config that departs from the script's own course is contradicted: its rates, schedules and averages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# The model computes its loss itself, so that a batch is split by the script's own options or not at all.
TRAIN = """
    import argparse
    import torch
    from torch.optim import lr_scheduler as schedules
    from torch.optim.swa_utils import AveragedModel
    from torch.utils.data import DataLoader, TensorDataset
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accum-iter", type=int, default=1)
    args = parser.parse_args()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)
        def forward(self, x, y):
            return torch.nn.functional.mse_loss(self.linear(x), y)

    loader = DataLoader(TensorDataset(torch.randn(256, 4), torch.randn(256, 1)), batch_size=args.batch_size)
    model = Model()
    RATE = 0.1
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    average = AveragedModel(model)
    MAKE
    for epoch in range(100000):
        for number, (x, y) in enumerate(loader, start=1):
            (model(x, y) / args.accum_iter).backward()
            EACH_BATCH
            if number % args.accum_iter == 0:
                optimizer.step()
                optimizer.zero_grad()
                EACH_STEP
"""
COSINE = "scheduler = schedules.CosineAnnealingLR(optimizer, 100 * len(loader))"
STEPS = "scheduler = schedules.CosineAnnealingLR(optimizer, 100 * len(loader) // args.accum_iter)"
WARM_UP = "scheduler = schedules.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 50))"
OF_THE_BATCH = "RATE = 0.1 * args.batch_size / 16"
SPLIT = {"batch_size": 4, "grad_accumulation": 4}
Departing = Callable[..., tuple[str, str]]


@pytest.fixture
def departing(write_script: Callable[..., Path], run_child: Callable[..., Any]) -> Departing:
    """What a config's evidence is, once the script ran as written."""

    def run(config: dict[str, Any], effective_batch: str = "keep", **parts: str) -> tuple[str, str]:
        text = TRAIN
        for name, code in {"MAKE": "", "EACH_BATCH": "pass", "EACH_STEP": "pass", **parts}.items():
            text = text.replace(name, code)
        script = write_script(text)
        baseline = run_child(script)
        facts = {name: value for name, value in baseline.facts.items() if name not in ("kind", "t")}
        assert facts["options"] == {"batch_size": "batch_size", "grad_accumulation": "accum_iter"}
        ran = run_child(script, config, knowledge={**facts, "effective_batch": effective_batch})
        report = next(r for r in reversed(ran.of("knob")) if r["knob"] in ("grad_accumulation", "batch_size"))
        return report["evidence"], report["reason"]

    return run


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"MAKE": STEPS, "EACH_STEP": "scheduler.step(); average.update_parameters(model)"}, ""),
        pytest.param(
            {"MAKE": COSINE, "EACH_STEP": "scheduler.step()"},
            "CosineAnnealingLR has T_max 6400, as written 1600",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"MAKE": WARM_UP, "EACH_BATCH": "scheduler.step()"},
            "is taken at a learning rate of",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"EACH_BATCH": "average.update_parameters(model)"},
            "an average of the model is updated 4 times a step",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"RATE = 0.1": OF_THE_BATCH},
            "step 1 is taken at a learning rate of 0.025, as written 0.1",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["followed", "a horizon in batches", "a warm-up in batches", "an average of batches", "a rate by the batch"],
)  # fmt: skip
def test_a_batch_split_by_the_scripts_own_options_keeps_its_course(
    departing: Departing, parts: dict[str, str], why: str
) -> None:
    evidence, reason = departing(SPLIT, **parts)
    assert evidence == ("contradicted" if why else "verified"), reason
    assert why in reason


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        pytest.param({"MAKE": COSINE, "EACH_STEP": "scheduler.step()"}, "", marks=pytest.mark.slow),
        (
            {"MAKE": COSINE.replace("100 * len(loader)", "1000"), "EACH_STEP": "scheduler.step()"},
            "times the samples that it covers as written",
        ),
        pytest.param({"RATE = 0.1": OF_THE_BATCH}, "of 1.6, as written 0.1 times 4", marks=pytest.mark.slow),
    ],
    ids=["of the loader's length", "of a number", "scaled twice"],
)
def test_a_freed_batch_keeps_the_schedule_by_samples(departing: Departing, parts: dict[str, str], why: str) -> None:
    evidence, reason = departing({"batch_size": 64, "lr_scale": 4.0}, "free", **parts)
    assert evidence == ("contradicted" if why else "verified"), reason
    assert why in reason


AVERAGED = """
    import torch
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn
    from torch.utils.data import DataLoader, TensorDataset
    loader = DataLoader(TensorDataset(torch.randn(256, 4), torch.randn(256, 1)), batch_size=4, shuffle=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    average = AveragedModel(modelHOW)
    for epoch in range(100000):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            EACH_STEP
        EACH_EPOCH
"""
UPDATE = "average.update_parameters(model)"
NOW_AND_THEN = f"(seen := globals().get('seen', 0) + 1) % 2 or {UPDATE}"
MOVING = ", multi_avg_fn=get_ema_multi_avg_fn(0.99)"


@pytest.mark.parametrize(
    ("how", "each_step", "each_epoch", "follows"),
    [
        (MOVING, UPDATE, "", False),
        (MOVING, NOW_AND_THEN, "", False),
        pytest.param(MOVING, "pass", UPDATE, True, marks=pytest.mark.slow),
        pytest.param("", UPDATE, "", True, marks=pytest.mark.slow),
        pytest.param(", multi_avg_fn=get_swa_multi_avg_fn()", UPDATE, "", True, marks=pytest.mark.slow),
    ],
    ids=["moving", "moving now and then", "moving by epochs", "of all", "of all, by name"],
)
def test_a_moving_average_goes_by_the_samples(
    write_script: Callable[..., Path], run_child: Callable[..., Any], how: str, each_step: str, each_epoch: str,
    *, follows: bool,
) -> None:  # fmt: skip
    """Of a larger batch a decay of 0.99 a step goes back over more samples; the loss tells nothing of the average."""
    text = AVERAGED.replace("HOW", how).replace("EACH_STEP", each_step).replace("EACH_EPOCH", each_epoch)
    script = write_script(text)
    facts = {name: value for name, value in run_child(script).facts.items() if name not in ("kind", "t")}
    ran = run_child(script, {"batch_size": 8, "lr_scale": 2.0}, knowledge={**facts, "effective_batch": "both"})
    report = [record for record in ran.of("knob") if record["knob"] == "batch_size"][-1]
    assert report["evidence"] == ("verified" if follows else "contradicted"), report
    assert ("a moving average of the weights moves with its steps" in report["reason"]) is not follows
