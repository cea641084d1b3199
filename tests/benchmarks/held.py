"""How far rates by turns are off where a loader's workers go on while a trial is held: on a made-up machine.

    python tests/benchmarks/held.py --trials 12 --seconds 5

A loop takes batches from workers that sleep for each of them, as for a request to a storage, or compute. It is held
between its turns, as beside another trial: what sleeps comes back meanwhile, what computes stands still. The clock, the
turns' lengths and the rule for what lies ready are the product's own. Prints of each case the rate that the loop
has by itself, as a share of what it has without waiting, then by turns the share of its wait, and what the rates are
to that rate: as counted, by what the loader made, and as they are told; each with its standard deviation from trial to
trial.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import statistics
from collections.abc import Sequence
from itertools import product

from tuner.analysis.sustained import sustained_amounts
from tuner.child.clock import StepClock
from tuner.child.recorder import Recorder
from tuner.child.records import Block, Phase, Record, Window
from tuner.child.turns import LEAD_IN_S, UNEVEN, Turns

STEP_S, FETCH_S, BLOCK_S = 0.035, 0.0001, 0.25
CASES = ((2, 0.08), (4, 0.14), (4, 0.15), (4, 0.16), (4, 0.17), (4, 0.2), (8, 0.16), (8, 0.4), (8, 0.5), (16, 1.0))
"""Workers, and seconds that each takes to a batch."""
SCATTERED = 0.3
"""The standard deviation of the logarithm of these seconds, where they scatter."""


class Machine(Recorder):
    """A loop, its workers and its clock; records go into ``blocks``.

    ``ahead``: batches that each worker may have made, with that which it makes; ``first_s``: what the loop does before
    it takes the first one.
    """

    def __init__(
        self, workers: int, batch_s: float, scatter: float, *,
        sleeps: bool, seed: int, ahead: int = 2, first_s: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(None)
        self.now = 0.0
        self.blocks: list[Block] = []
        self.random = random.Random(seed)
        self._begins_as_taken = ahead == 1
        self._workers, self._sleeps, self._scatter, self._batch_s = workers, sleeps, scatter, batch_s
        self._asked, self._ready, self._ends = ahead * workers, 0, list[float]()
        for _ in range(workers):
            self._begin(0.0)
        self.now = first_s

    def emit(self, record: Record) -> None:
        """Keeps a block of the window."""
        if isinstance(record, Block) and record.phase is Phase.WINDOW:
            self.blocks.append(record)

    def _begin(self, at: float) -> None:
        if self._asked and len(self._ends) < self._workers:
            self._asked -= 1
            takes_s = self._batch_s * math.exp(self.random.gauss(0, self._scatter) - self._scatter**2 / 2)
            heapq.heappush(self._ends, at + takes_s)

    def ready(self) -> float:
        """Batches that lie ready by now."""
        while self._ends and self._ends[0] <= self.now:
            at = heapq.heappop(self._ends)
            self._ready += 1
            self._begin(at)
        return float(self._ready)

    def fetch(self) -> float:
        """Takes a batch; how long that was waited for."""
        began, self.now = self.now, self.now + FETCH_S
        if not self.ready():
            self.now = self._ends[0]
            self.ready()
        self._ready -= 1
        self._asked += 1
        self._begin(self.now)
        return self.now - began

    def hold(self, seconds: float) -> None:
        """Others have a turn."""
        self.ready()
        self.now += seconds
        self._ends = [max(end, self.now) if self._sleeps else end + seconds for end in self._ends]
        heapq.heapify(self._ends)

    def train(self, seconds: float, *, by_turns: bool) -> Sequence[Block]:
        """The blocks of a window of so many seconds."""
        window = Window(warmup_steps=4, warmup_s=1.0, block_s=BLOCK_S, min_blocks=10**9, min_s=seconds, max_s=seconds)
        clock = StepClock(self, window, clock=lambda: self.now)
        clock.ready, clock.turns = self.ready, Beside(self) if by_turns else None
        if clock.turns is not None:
            clock.turns.at_work = float(self._workers) if self._sleeps else 0.0
            clock.turns.begins_as_taken = self._begins_as_taken
        is_over = False
        while not is_over:
            clock.add_samples(1, self.fetch())
            self.now += STEP_S * max(0.2, self.random.gauss(1, 0.05))
            is_over = clock.step()
        return self.blocks


class Beside(Turns):
    """Turns beside another trial, which has as long ones."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine, -1)
        self._machine = machine

    def wait(self, *, enough: bool, whole: bool) -> float:
        """As ``TurnGiver.wait``."""
        uneven, chance = self._machine.random.uniform(1 - UNEVEN, 1 + UNEVEN), self._machine.random
        seconds = BLOCK_S * self.longer * uneven + LEAD_IN_S + self.made_s * chance.random() + chance.uniform(0, STEP_S)
        self._machine.hold(seconds)
        self.current, self.ended = self.current + 1, enough
        self.vary()
        return seconds


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--ahead", type=int, default=2, help="batches that each worker may have made, 1 as in tf.data")
    parser.add_argument("--first", type=float, default=0.0, help="seconds before the loop takes the first of them")
    given = parser.parse_args()
    print("workers        batch     alone  wait  as counted        made        told")
    for sleeps, scatter, (workers, batch_s) in product((True, False), (0.0, SCATTERED), CASES):
        by_itself = Machine(workers, batch_s, scatter, sleeps=sleeps, seed=-1, ahead=given.ahead)
        alone = rate_of(by_itself.train(120.0, by_turns=False))
        runs = [
            Machine(
                workers, batch_s, scatter, sleeps=sleeps, seed=seed, ahead=given.ahead, first_s=given.first
            ).train(given.seconds, by_turns=True)
            for seed in range(given.trials)
        ]  # fmt: skip
        ways = (
            [rate_of(blocks) for blocks in runs],
            [rate_of(blocks, [block.samples + _change(block) for block in blocks]) for blocks in runs],
            [rate_of(blocks, sustained_amounts(blocks)) for blocks in runs],
        )
        told = "  ".join(f"{statistics.mean(x) / alone:.2f} ±{statistics.stdev(x) / alone:4.0%}" for x in ways)
        wait = statistics.mean(sum(b.wait_s for b in blocks) / sum(b.seconds for b in blocks) for blocks in runs)
        kind = f"{workers} that {'sleep' if sleeps else 'compute'}"
        print(f"{kind:14} {batch_s:.2f} s ±{scatter:.0%} {alone * STEP_S:6.2f} {wait:5.1%}  {told}")


def rate_of(blocks: Sequence[Block], amounts: Sequence[float] | None = None) -> float:
    """Samples a second: as counted, or these amounts."""
    counted = [block.samples for block in blocks] if amounts is None else amounts
    return sum(counted) / sum(block.seconds for block in blocks)


def told_by_turns(machine: Machine, seconds: float) -> float:
    """The rate of one trial that takes turns, as it is told."""
    blocks = machine.train(seconds, by_turns=True)
    return rate_of(blocks, sustained_amounts(blocks))


def _change(block: Block) -> float:
    return (block.ready_after or 0.0) - (block.ready_before or 0.0)


if __name__ == "__main__":
    main()
