"""Screens: pairs draw the same numbers, seeds differ from each other, and losses are of whole steps."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.torch_trials import begin

from tuner.child.torch.losses import loss_reduction

__all__ = ["begin"]
TRAIN = """
    import random
    import numpy
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    SEEDING
    x = torch.randn(512, 16)
    y = (x.sum(1) + numpy.random.rand(512).astype("float32") + random.random()).unsqueeze(1).float()
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loss_of = torch.nn.functional.mse_loss
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
"""
LOOP = """
    for epoch in range(10_000):
        for a, b in loader:
            optimizer.zero_grad()
            loss_of(model(a), b).backward()
            optimizer.step()
"""
SUMMED = LOOP.replace("b).backward", "b, reduction='sum').backward")
SCALED = LOOP.replace("loss_of(model(a), b).backward()", "scaler.scale(loss_of(model(a), b)).backward()").replace(
    "optimizer.step()", "scaler.step(optimizer); scaler.update()"
)
SCALED = "scaler = torch.amp.GradScaler('cpu')\n" + textwrap.dedent(SCALED)
IN_PARTS = """
    for epoch in range(10_000):
        for a, b in loader:
            optimizer.zero_grad()
            for i in range(0, 32, 8):
                (loss_of(model(a[i:i + 8]), b[i:i + 8])DIVIDED).backward()
            optimizer.step()
"""
SEEDED = "torch.manual_seed(7); numpy.random.seed(7); random.seed(7)"
SAMPLES = 640
Losses = Callable[..., list[tuple[float, float]]]


@pytest.fixture(scope="module")
def screened() -> dict[tuple[Any, ...], list[tuple[float, float]]]:
    """The losses of each screen that has run: one seed is one training, as the first test here holds."""
    return {}


@pytest.fixture
def losses(
    run_child: Callable[..., Any], write_script: Callable[..., Path], screened: dict[Any, list[tuple[float, float]]]
) -> Losses:
    """The losses of a screen, run once however many tests look at it, or anew."""

    def run(
        seed: int, config: dict[str, Any] | None = None, seeding: str = SEEDED, loop: str = LOOP, anew: bool = False
    ) -> list[tuple[float, float]]:
        key = (seed, tuple((config or {}).items()), seeding, loop)
        if key not in screened or anew:
            screened[key] = screen(seed, config, seeding, loop)
        return screened[key]

    def screen(seed: int, config: dict[str, Any] | None, seeding: str, loop: str) -> list[tuple[float, float]]:
        text = textwrap.dedent(TRAIN).replace("SEEDING", seeding) + textwrap.dedent(loop)
        window = {"warmup_steps": 0, "warmup_s": 0, "block_s": 0, "min_blocks": 3, "min_s": 0, "max_s": 60}
        window |= {"target_half_width": 0, "until_samples": SAMPLES}
        knowledge = {"training_loaders": ["train.py:12#0"]}
        ran = run_child(write_script(text), config, window=window, seed=seed, knowledge=knowledge)
        assert ran.of("window")[0]["complete"]
        return [(record["samples"], record["value"]) for record in ran.of("loss")]

    return run


@pytest.mark.parametrize(
    "seeding", [pytest.param(SEEDED, marks=pytest.mark.slow), ""], ids=["script seeds", "script does not seed"]
)
def test_one_seed_is_one_training_and_another_is_another(losses: Losses, seeding: str) -> None:
    first, again, other = (
        losses(seed, seeding=seeding, anew=True) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert first[-1][0] == SAMPLES


@pytest.mark.parametrize(
    "loop",
    [LOOP, *(pytest.param(loop, marks=pytest.mark.slow) for loop in (SUMMED, SCALED))],
    ids=["mean", "sum", "gradient scaler"],
)
def test_micro_batches_give_the_loss_of_the_whole_step(losses: Losses, loop: str) -> None:
    whole = losses(3, loop=loop)
    parts = losses(3, {"batch_size": 8, "grad_accumulation": 4}, loop=loop)
    assert [samples for samples, _ in parts] == [samples for samples, _ in whole]
    assert [loss for _, loss in parts] == pytest.approx([loss for _, loss in whole], rel=1e-3)


def test_the_first_loss_is_that_of_weights_that_no_step_has_changed(losses: Losses) -> None:
    """Batches of two sizes are compared by it, whatever a larger learning rate makes of the second one."""
    seen, faster = losses(3), losses(3, {"lr_scale": 16.0})
    assert [samples for samples, _ in seen[:3]] == [32, 64, 96]
    assert seen[0][1] == faster[0][1]
    assert seen[1][1] > 1.02 * faster[1][1]


def test_a_gradient_scaler_does_not_scale_the_loss(losses: Losses) -> None:
    """Else a trainer's fp16 would be told to learn 65536 times worse."""
    assert losses(3, loop=SCALED)[0][1] == pytest.approx(losses(3)[0][1], rel=1e-3)


@pytest.mark.parametrize(
    "divided",
    ["/ 4", *(pytest.param(divided, marks=pytest.mark.slow) for divided in ("/ 4 / 1", ""))],
    ids=["as trainers do", "as two of them do", "not divided"],
)
def test_parts_of_the_scripts_own_give_the_loss_of_the_whole_step(losses: Losses, divided: str) -> None:
    """Lightning and accelerate divide each part's loss: twice the parts must not look twice as good."""
    whole, parts = losses(3), losses(3, loop=IN_PARTS.replace("DIVIDED", divided))
    assert parts[0][1] == pytest.approx(whole[0][1], rel=1e-2)


def test_a_screen_counts_steps_where_the_baseline_did(
    run_child: Callable[..., Any], write_script: Callable[..., Path]
) -> None:
    """All data come as one batch, whose samples would end the screen at once."""
    once = "a, b = next(iter(loader))\nfor epoch in range(10_000):\n"
    loop = "    optimizer.zero_grad(); loss_of(model(a), b).backward(); optimizer.step()\n"
    text = textwrap.dedent(TRAIN).replace("SEEDING", SEEDED) + once + loop
    window = {"warmup_steps": 0, "warmup_s": 0, "block_s": 0, "min_blocks": 3, "min_s": 0, "max_s": 60}
    window |= {"target_half_width": 0, "until_samples": 20}
    ran = run_child(write_script(text), window=window, seed=1, knowledge={"unit": "steps"})
    assert ran.of("window")[0]["complete"]
    assert ran.of("loss")[-1]["samples"] == 20


@pytest.mark.parametrize(
    ("loss", "reduction"),
    [
        ("loss_of(model(a), b)", "mean"),
        ("loss_of(model(a), b, reduction='sum') + 0.1 * model(a).square().sum()", "sum"),
        ("loss_of(model(a), b, reduction='sum') / len(a)", "count"),
        ("(model(a) - b).square().mean() / 2", "mean"),
        ("(model(a) - b).abs().max()", "unknown"),
    ],
)
def test_how_the_loss_depends_on_the_batch_is_read_from_its_graph(loss: str, reduction: str) -> None:
    model, a, b = torch.nn.Linear(4, 1), torch.randn(8, 4), torch.randn(8, 1)
    names = {"model": model, "a": a, "b": b, "loss_of": torch.nn.functional.mse_loss}
    assert loss_reduction(eval(loss, names)) == reduction


BY_HAND = """
    import torch
    weight, bias = torch.zeros(8, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
    while True:
        x = torch.rand(16, 8)
        ((x @ weight + bias - x.sum(1, keepdim=True)) ** 2).mean().backward()
        with torch.no_grad():
            for each in (weight, bias):
                each -= RATE * each.grad
                each.grad = None
"""
MADE_ANEW = """
    import torch
    model = torch.nn.Linear(8, 1)
    while True:
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        x = torch.rand(16, 8)
        ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        pytest.param(BY_HAND, 0.1, id="by hand"),
        pytest.param(BY_HAND, 0.0, id="by hand, by nothing", marks=pytest.mark.slow),
        pytest.param(MADE_ANEW, 0.1, id="with an optimizer for each step", marks=pytest.mark.slow),
        pytest.param(MADE_ANEW, 0.0, id="with an optimizer for each step, by nothing"),
    ],
)
def test_weights_are_seen_to_move_whatever_moves_them(
    run_child: Callable[..., Any], write_script: Callable[..., Path], text: str, rate: float
) -> None:
    window = {"warmup_steps": 0, "warmup_s": 0, "block_s": 0, "until_samples": 40}
    ran = run_child(write_script(text.replace("RATE", str(rate))), window=window, seed=1)
    assert ran.of("window")[0]["complete"], ran.output
    (change,) = ran.of("weights")
    assert change["steps"] >= 30 and (change["path"] > 0) is (rate > 0)


def test_groups_of_weights_are_told_by_their_shapes(begin: Callable[..., Any]) -> None:
    """Not by the order in which they are met, nor by what they are called."""
    seen: list[dict[str, float]] = []
    for order in (1, -1):
        trial = begin(seed=1)
        for size in (3, 5)[::order]:
            model = torch.nn.Linear(size, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=float(size))
            model(torch.ones(4, size)).mean().backward()
            optimizer.step()
        trial.end()
        seen.append({change["group"]: round(change["path"], 3) for change in trial.log.of("weights")})
    assert seen[0] == seen[1] and len(seen[0]) == 2 and len({*seen[0].values()}) == 2


def _by_hand(model: Any) -> None:
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    for _ in range(3):
        model(torch.ones(2, 3)).mean().backward()
        for parameter in model.parameters():
            parameter.data.sub_(0.1 * parameter.grad)
            parameter.grad = None


@pytest.mark.slow
def test_weights_that_are_updated_by_hand_are_the_same_group_compiled(begin: Callable[..., Any]) -> None:
    """The leaves of a compiled graph come in another order, and of many a sample is watched."""
    widths, seen = [*range(3, 24)], []
    for compiled in (False, True):
        trial = begin(seed=1)
        layers = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
        model = torch.nn.Sequential(*layers)
        _by_hand(torch.compile(model, backend="aot_eager") if compiled else model)
        trial.end()
        (moved,) = trial.log.of("weights")
        seen.append((moved["group"], moved["steps"], round(moved["path"], 4)))
    assert seen[0] == seen[1] and seen[0][2] > 0
