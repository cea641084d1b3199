"""How often a screen passes a config that learns as from a share of its samples, by the study's rule: 3, then 6 seeds.

    python tests/benchmarks/screen_power.py --screens 400
    python tests/benchmarks/screen_power.py --record      # the losses of studies/digits anew, some twenty minutes

The curves: of studies/digits, recorded (12 seeds as written, and with bf16, channels_last and fused, which is the
candidate; seeds are drawn without replacement); and simulated ones whose runs of a pair share the noise of their
batches and differ by some of their own, as numbers of another format do: a language model's power law, and a loss that
reaches a plateau early. The last one hardly learns: 10.8 to 10.7. 0% never learns.

November 2026, as above: of 400 screens of each kind pass

                             100%   98%     90%   80%    0%
    digits, recorded          400   400      21     0     0
    language model, simulated 400   400       0     0     0
    early plateau, simulated  400   400      83     0     0
    hardly learned, simulated   0     0       0     0     0

At exactly the limit of 90% five percent should pass at most. More do where a loss comes down in few steps and its
batches are loud: all seeds are held against one curve, whose noise their spread doesn't show.
"""

from __future__ import annotations

import argparse
import importlib
import json
import lzma
import random
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from shares import share_text
from support import recorded_losses as kept

from tuner.analysis.accuracy import MOST_SEEDS, SEEDS, AccuracyLimits, is_settled, judge
from tuner.analysis.checks import Pair
from tuner.analysis.stats import Noninferiority
from tuner.model import BASELINE

SHARES = (1.0, 0.98, 0.9, 0.8, 0.0)
STEPS = 470
Curves = Callable[[random.Random, float], list[Pair]]
"""Pairs for all seeds of a screen, whose candidate learns as from a share of the samples."""


def digits(chance: random.Random, share: float) -> list[Pair]:
    """Recorded ones."""
    samples, losses = kept.recorded()
    seeds = chance.sample(range(len(losses[kept.AS_WRITTEN])), MOST_SEEDS)
    pairs = []
    for number, seed in enumerate(seeds, start=1):
        after = losses[kept.FASTER][seed]
        candidate = kept.as_from(after, share) if share else kept.never(after)
        pairs.append(
            Pair(number, kept.outcome(samples, losses[kept.AS_WRITTEN][seed]), kept.outcome(samples, candidate))
        )
    return pairs


def simulated(loss: Callable[[float], float], noise: float, own: float) -> Curves:
    """``loss`` is that after a share of the screen's samples; ``noise`` that of a batch, ``own`` a run's beside it."""

    def made(chance: random.Random, share: float) -> list[Pair]:
        samples = [64.0 * step for step in range(1, STEPS + 1)]
        pairs = []
        for number in range(1, MOST_SEEDS + 1):
            batches = [chance.gauss(0, noise) for _ in samples]

            def run(pace: float, batches: list[float] = batches) -> list[float]:
                level = 0.0
                losses = []
                for step, batch in enumerate(batches):
                    level = 0.98 * level + chance.gauss(0, own)  # runs that once differ go ways of their own
                    losses.append(loss(pace * step / STEPS) + batch + level)
                return losses

            pairs.append(Pair(number, kept.outcome(samples, run(1.0)), kept.outcome(samples, run(share))))
        return pairs

    return made


CURVES: dict[str, Curves] = {
    "digits, recorded": digits,
    "language model, simulated": simulated(lambda over: 2 + 8.8 * (1 + 20 * over) ** -0.4, 0.15, 0.002),
    "early plateau, simulated": simulated(lambda over: 0.5 + 2 * 0.5 ** (over * 25), 0.1, 0.001),
    "hardly learned, simulated": simulated(lambda over: 10.8 - 0.1 * over, 0.05, 0.001),
}


def verdict_of(pairs: list[Pair]) -> Noninferiority:
    """The verdict of a screen over these pairs, as a study comes to it."""
    for count in (SEEDS, MOST_SEEDS):
        result = judge(BASELINE, pairs[:count], AccuracyLimits(), STEPS * 64)
        if result.verdict is not Noninferiority.INCONCLUSIVE or is_settled(BASELINE, pairs[:count]):
            break
    return result.verdict


def record(seeds: int) -> None:
    """Trains studies/digits as written and faster, on each seed."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "studies" / "digits"))
    import torch

    train = importlib.import_module("train")
    torch.set_num_threads(1)
    data, _ = train.build_datasets(0)
    samples: list[int] = []
    losses: dict[str, kept.Losses] = {kept.AS_WRITTEN: [], kept.FASTER: []}
    for seed in range(1, seeds + 1):
        for name, runs in losses.items():
            faster = name == kept.FASTER
            torch.manual_seed(seed)
            loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
            model = train.build_model()
            model = model.to(memory_format=torch.channels_last) if faster else model
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2, fused=faster)
            seen, run = 0, list[float]()
            samples.clear()
            while len(run) < STEPS:
                for images, labels in loader:
                    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=faster):
                        laid = images.contiguous(memory_format=torch.channels_last) if faster else images
                        loss = torch.nn.functional.cross_entropy(model(laid), labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    seen += len(labels)
                    samples.append(seen)
                    run.append(float(f"{loss.item():.4g}"))
            runs.append(run[:STEPS])
            print(f"seed {seed}, {name}: {sum(run[STEPS // 2 : STEPS]) / (STEPS - STEPS // 2):.4g}", flush=True)
    document = json.dumps({"samples": samples[:STEPS], **losses}, separators=(",", ":"))
    kept.FILE.write_bytes(lzma.compress(document.encode(), preset=9))


def main() -> None:
    """Prints a line for each kind of curve and each share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--screens", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    if arguments.record:
        record(12)
        return
    for name, curves in CURVES.items():
        for share in SHARES:
            chance = random.Random(f"{arguments.seed}:{name}:{share}")
            told = [verdict_of(curves(chance, share)) for _ in range(arguments.screens)]
            passed, failed = (told.count(each) for each in (Noninferiority.PASS, Noninferiority.FAIL))
            said = f"{share_text(passed, arguments.screens)} pass, {share_text(failed, arguments.screens)} fail"
            print(f"{name:<26} {share:>4.0%}  {said}", flush=True)


if __name__ == "__main__":
    main()
