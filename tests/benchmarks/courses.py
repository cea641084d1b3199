"""How far trainings that differ in rounding, or a little more, leave the course of the script as written.

    python tests/benchmarks/courses.py [--steps 200] [--models mlp conv transformer]

Each model trains as written and otherwise, on the same batches and from the same weights, and the two are held against
each other as in a screen: see ``tuner/analysis/course.py``. Prints for each the two figures in percent, of the losses
and of the weights, after a quarter of the steps and after all, and what the losses as written do. Both are within 2%
of what keeps the course.

November 2026, as above:

                                            losses, weights after 50       losses, weights after 200
    mlp, AdamW: as written the losses are down
      foreach                                                 0%, 0%                          0%, 0%
      fused                                             3.7e-05%, 0%                    2.2e-05%, 0%
      2 threads                                         5.2e-05%, 0%                    2.8e-05%, 0%
      bf16                                               0.38%, 1.4%                     0.25%, 0.9%
      rate x 1.01                                          12%, 1.1%                     1.6%, 0.35%
      rate x 1.1                                       1.2e+02%, 11%                       15%, 1.8%
      rate x 0.5                                       6.3e+02%, 51%                   1.9e+02%, 13%
    mlp, SGD: as written the losses are down
      foreach                                                 0%, 0%                          0%, 0%
      fused                                             2.1e-05%, 0%                    2.5e-05%, 0%
      2 threads                                         1.7e-05%, 0%                    2.4e-05%, 0%
      bf16                                               0.24%, 2.1%                     0.21%, 4.9%
      rate x 1.01                                         1.5%, 1.4%                     0.65%, 4.4%
      rate x 1.1                                           14%, 7.5%                        6%, 7.3%
      rate x 0.5                                            87%, 26%                        38%, 34%
    conv, AdamW: as written the losses are down
      foreach                                                 0%, 0%                          0%, 0%
      fused                                             0.00019%, 0%                    6.3e-05%, 0%
      2 threads                                         0.00017%, 0%              6.4e-05%, 0.00013%
      bf16                                                   1%, 13%                     0.51%, 9.7%
      rate x 1.01                                         4.9%, 2.9%                      3.9%, 5.1%
      rate x 1.1                                            47%, 12%                        36%, 14%
      rate x 0.5                                       2.5e+02%, 51%                   2.9e+02%, 54%
    conv, SGD: as written the losses are down
      foreach                                                 0%, 0%                          0%, 0%
      fused                                             2.6e-05%, 0%                       3.9%, 30%
      2 threads                                         3.7e-05%, 0%                       3.9%, 30%
      bf16                                                 3.5%, 28%                        11%, 65%
      rate x 1.01                                          2.8%, 19%                       7.9%, 58%
      rate x 1.1                                           13%, inf%                        13%, 77%
      rate x 0.5                                           63%, inf%                       40%, inf%
    transformer, AdamW: as written the losses are down
      foreach                                                 0%, 0%                          0%, 0%
      fused                                             3.1e-05%, 0%                 9.7e-05%, 0.02%
      2 threads                                         2.7e-05%, 0%                 0.00012%, 0.03%
      bf16                                               0.5%, 0.98%                     0.27%, 1.2%
      rate x 1.01                                          0.68%, 1%                       0.38%, 1%
      rate x 1.1                                          6.6%, 7.8%                      3.7%, 9.1%
      rate x 0.5                                            47%, 38%                        24%, 48%
    transformer, SGD: as written the losses are level
      foreach                                                 0%, 0%                          0%, 0%
      fused                                             2.5e-05%, 0%                     0.28%, 2.4%
      2 threads                                    0.00025%, 0.0049%                     0.41%, 2.5%
      bf16                                               0.59%, 1.7%                      1.1%, 4.4%
      rate x 1.01                                           2%, 3.2%                      5.9%, 8.5%
      rate x 1.1                                            23%, 29%                        59%, 65%
      rate x 0.5                                            85%, 77%                     1e+02%, 81%
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import worlds

from tuner.analysis.checks import Pair
from tuner.analysis.course import course_checks
from tuner.analysis.learning import descent_of
from tuner.child.movement import Movement
from tuner.child.torch.weights import reader
from tuner.model import Outcome, WeightChange

nn, functional = torch.nn, torch.nn.functional
SAMPLES, BATCH, NOISE = 4096, 32, 0.35


class Task(NamedTuple):
    """A model, its data, and the optimizers that are tried on it."""

    model: Callable[[], Any]
    inputs: Callable[[torch.Generator], torch.Tensor]
    classes: int


def _transformer() -> Any:
    layer = nn.TransformerEncoderLayer(64, 2, 256, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(2000, 64), encoder, nn.Flatten(), nn.Linear(32 * 64, 2))


def _conv() -> Any:
    blocks = [(1, 16, 1), (16, 32, 2), (32, 64, 2)]
    layers = [nn.Sequential(nn.Conv2d(a, b, 3, stride), nn.BatchNorm2d(b), nn.ReLU()) for a, b, stride in blocks]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4, 10))


TASKS = {
    "mlp": Task(
        lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)),
        lambda chance: torch.randn(SAMPLES, 64, generator=chance), 10,
    ),
    "conv": Task(_conv, lambda chance: torch.randn(SAMPLES, 1, 16, 16, generator=chance), 10),
    "transformer": Task(_transformer, lambda chance: torch.randint(0, 2000, (SAMPLES, 32), generator=chance), 2),
}  # fmt: skip
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "AdamW": lambda weights, **how: torch.optim.AdamW(weights, lr=1e-4, **how),
    "SGD": lambda weights, **how: torch.optim.SGD(weights, lr=0.01, momentum=0.9, **how),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "foreach": {"foreach": True}, "fused": {"fused": True}, "2 threads": {"threads": 2}, "bf16": {"bf16": True},
    "rate x 1.01": {"rate": 1.01}, "rate x 1.1": {"rate": 1.1}, "rate x 0.5": {"rate": 0.5},
}  # fmt: skip


def _labels(task: Task, chance: torch.Generator) -> torch.Tensor:
    """Of which a third is noise: a loss that comes down little beside what it varies by."""
    drawn = torch.randint(0, task.classes, (SAMPLES,), generator=chance)
    return torch.where(torch.rand(SAMPLES, generator=chance) < NOISE, drawn, torch.zeros_like(drawn))


def run(
    task: Task, optimizer: Callable[..., Any], looks: Sequence[int], *, bf16: bool = False, rate: float = 1.0,
    threads: int = 1, **how: bool,
) -> list[Outcome]:  # fmt: skip
    """One training: what a screen of so many steps would have recorded, for each of these."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    chance = torch.Generator().manual_seed(1)
    inputs, labels, model = task.inputs(chance), _labels(task, chance), task.model()
    made = optimizer(model.parameters(), **{"foreach": False, **how})
    for group in made.param_groups:
        group["lr"] *= rate
    movement = Movement("", reader(torch, list(model.parameters())))
    movement.look()
    losses, outcomes = list[float](), list[Outcome]()
    for step in range(1, max(looks) + 1):
        rows = torch.randint(0, SAMPLES, (BATCH,), generator=chance)
        made.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = functional.cross_entropy(model(inputs[rows]), labels[rows])
        loss.backward()
        made.step()
        movement.look()
        losses.append(loss.item())
        if step in looks:
            outcomes.append(_outcome(losses, movement.record))
    return outcomes


def _outcome(losses: Sequence[float], weights: WeightChange) -> Outcome:
    outcome = worlds.measured(100.0)
    assert outcome.measurement is not None
    measurement = replace(outcome.measurement, losses=(worlds.series(losses),), weights=(weights,))
    return replace(outcome, measurement=measurement)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--models", nargs="+", choices=TASKS, default=list(TASKS))
    arguments = parser.parse_args()
    looks = (arguments.steps // 4, arguments.steps)
    print(f"{'':32s}" + "".join(f"{f'losses, weights after {look}':>32s}" for look in looks))
    for model in arguments.models:
        for name, optimizer in OPTIMIZERS.items():
            written = run(TASKS[model], optimizer, looks)
            print(f"{model}, {name}: as written the losses are {descent_of(written[-1:])}")
            for variant, how in VARIANTS.items():
                other = run(TASKS[model], optimizer, looks, **how)
                shown = [course_checks([Pair(1, *both)]) for both in zip(written, other, strict=True)]
                cells = [", ".join(f"{100 * check.worse:.2g}%" for check in checks) or "none" for checks in shown]
                print(f"  {variant:30s}" + "".join(f"{cell:>32s}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
