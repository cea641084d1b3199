"""What autotune's own instruments take of a step: told by stretches of steps with them and without them, in turn.

A step without them is what the script has alone, or under ``autotune run``; a rate that holds them is below that.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from .records import Knowledge
from .words import Value

SHORT_STEP_S = 0.005
"""Of longer steps the instruments, 0.02 to 0.2 ms, are a few percent at most, and what stretches tell is no better."""
ALIKE = 2.0
"""Times that, of which a step may be where it was told of the script as written: both sides of a ratio are told it."""
OF_CALLS = frozenset({"steps_per_execution", "steps_per_call", "batch_size", "grad_accumulation"})
"""With these knobs a step may take fewer calls than as written, and autotune so much less of it: what it is of the
script says nothing of such a config. A step of 0.4 ms was told 0.56 of its length where one call made eight.
"""
MOST = 0.9
"""Of a step, that what was told of the script can be: where it's more, the loop isn't what it was there."""
STRETCH_S = 0.02
UNEVEN = 0.5
"""Stretches are longer or shorter than usual at random, by up to so much of their length, and of few steps it's drawn
which one of two has them. What a script does every 50 steps fell into each stretch with them, or into each without,
where two had as many steps: of steps of 0.6 ms, a tenth of whose time that took, 0.32 ms were told where 0.2 ms were
true.
"""
MANY_STEPS = 100
"""Of a stretch, which what recurs falls into whatever its order is: with and without them in strict turn, each stretch
follows one of the other kind, and two of a kind are alike. By drawn order a loop of 0.025 ms, of which they take four
times as much, was told 1.34 and 1.41 of its steps, and in turn 1.16 and 1.18 (``tests/benchmarks/overhead.py --script
jax-short --told --pairs 5``, medians; 1.16 of ``--pairs 7``).
"""
LEAST_STEPS = 8
"""Of a stretch, on average: a device is waited for at both ends."""
LEAST_PAIRS = 12
"""Of stretches, before what they tell is taken."""
PRECISION = 0.01
"""Of a step, within which the cost has to be known (95%), for so many seconds at most."""
MOST_S = 1.5
ROUGHLY = 0.05
"""Of a step, from then on, or twice as much of the cost itself. What isn't known so well after as many seconds again
isn't told: no interval holds it."""


class Instruments:
    """``off``: whether steps go without them now, which whoever watches them looks at, and then tells ``passed``.

    ``step_s``: seconds that they take of each step, and ``share`` of it; 0.0 as long as nothing is told.
    ``is_wanted``: whether it is to be told here, and ``may_go_off`` whether the loop's steps can go without them. Where
    they can't, or that tells nothing, it is what it was of the script as written.
    ``missed``, and before it the ``listeners``, are told how many steps went without them, once they are on again;
    ``missed`` also as the last stretch has ended.
    ``unseen``: steps that went without them so far, and whose ``missed`` were told.
    ``counts_samples``: whether it is they that count the samples, so that those of such steps aren't counted.
    """

    def __init__(self, missed: Callable[[int], None], clock: Callable[[], float] = time.perf_counter) -> None:
        self.off = False
        self.counts_samples = True
        self.step_s = self.share = 0.0
        self.is_under_way = False
        self.is_wanted: Callable[[], bool] = lambda: False
        self.may_go_off: Callable[[], bool] = lambda: False
        self.listeners: list[Callable[[int], None]] = []
        self._longest_s, self._known_s, self._usual_s = SHORT_STEP_S, 0.0, 0.0
        self._missed = missed
        self._synchronize: Callable[[], None] = lambda: None
        self._clock = clock
        self._is_done = self._is_config = self._is_by_script = False
        self._usual_length = self._length = self._taken = self._passed = self.unseen = 0
        self._chance = random.Random(1)
        self._began: float | None = None
        self._first_s: float | None = None
        self._differences: list[float] = []
        self._without_s: list[float] = []
        self._ends_at = math.inf

    def knows(self, script: Knowledge, config: Mapping[str, Value]) -> None:
        """What is known of it as written: a ratio is wrong by all that is taken out of one of its sides alone."""
        self._is_config = bool(config)
        if script.steps:
            self._known_s = 0.0 if OF_CALLS & config.keys() else script.instruments_s
            self._longest_s = ALIKE * SHORT_STEP_S if script.instruments_s else 0.0

    @contextmanager
    def put_aside(self) -> Iterator[None]:
        """Within a step of the script as written: what is called meanwhile isn't the script's."""
        was_off, self.off = self.off, True
        try:
            yield
        finally:
            self.off = was_off

    def begin(self, step_s: float, synchronize: Callable[[], None]) -> bool:
        """Begins stretches of steps that last so long, once at most. Returns whether some are under way.

        ``synchronize`` waits until the device is done with the steps so far.
        """
        if self._is_done or self.is_under_way or step_s > self._longest_s or not self.is_wanted():
            return self.is_under_way
        self._usual_s = step_s
        if not self.may_go_off():
            self._go_by_script()
            return False
        self.is_under_way, self._synchronize = True, synchronize
        self._usual_length = self._length = max(LEAST_STEPS, math.ceil(STRETCH_S / max(step_s, 1e-7)))
        self._ends_at = self._clock() + MOST_S
        return True

    def taken_of(self, seconds: float, steps: int, wait_s: float = 0.0, *stock: float | None) -> float:
        """What they took of so many steps, which lasted so long: in the seconds that were told, or in their share where
        the machine is faster by now.

        Of a config's steps that were told what those of the script are, no more than a loader that works ahead leaves:
        while the loop waits for it, nothing else takes time. ``wait_s`` of those seconds, and ``stock``, the samples
        that lay ready as they began and ended (None where nothing works ahead).
        """
        taken_s = min(self.step_s * steps, self.share * seconds)
        ready = [each for each in stock if each is not None]
        if not (self._is_by_script and self._is_config and ready):
            return taken_s
        return max(0.0, taken_s - wait_s) if min(ready) else 0.0

    def passed(self, count: int = 1) -> None:
        """So many steps went without them; for good, in an applied run that has told what took effect."""
        if not self.is_under_way:
            return
        self._passed += count
        self.stepped(count)

    def stepped(self, count: int) -> None:
        """So many steps ended within stretches. The first one isn't timed: caches are those of the stretch before."""
        self._taken += count
        if self._began is None:
            self._synchronize()
            self._began, self._taken = self._clock(), 0
        elif self._taken >= self._length:
            self._synchronize()
            now = self._clock()
            self._ended((now - self._began) / self._taken, now)

    def interrupted(self, *, for_good: bool = False) -> None:
        """Something else than training begins: the stretch under way doesn't count, and the next one has them on.

        ``for_good``: there is none, since steps that go without them can't be counted any more.
        """
        if not self.is_under_way:
            return
        self._first_s = None
        self._end_or_go(off=False, now=math.inf if for_good else self._clock())

    def _ended(self, step_s: float, now: float) -> None:
        was_off, first_s, self._first_s = self.off, self._first_s, None
        if first_s is None:
            self._first_s = step_s
            self._end_or_go(off=not was_off, now=now)
            return
        with_s, without_s = (first_s, step_s) if was_off else (step_s, first_s)
        self._differences.append(with_s - without_s)
        self._without_s.append(without_s)
        if len(self._differences) >= LEAST_PAIRS and self._is_known(roughly=now >= self._ends_at):
            self._tell(max(0.0, _middle(self._differences)), _middle(self._without_s))
            self._go(off=False, ends=True)
        else:
            is_drawn = self._usual_length < MANY_STEPS
            self._end_or_go(off=self._chance.random() < 0.5 if is_drawn else not was_off, now=now)

    def _end_or_go(self, *, off: bool, now: float) -> None:
        ends = now >= self._ends_at + MOST_S
        if ends:
            self._go_by_script()
        self._go(off=off, ends=ends)

    def _tell(self, own_s: float, step_s: float) -> None:
        """``step_s``: of a step without what is autotune's ``own_s``, as these steps have shown it."""
        self.step_s, self.share, self._is_by_script = own_s, own_s / (own_s + step_s), False

    def _go_by_script(self) -> None:
        if 0.0 < self._known_s <= MOST * self._usual_s:
            self._tell(self._known_s, max(0.0, self._usual_s - self._known_s))
            self._is_by_script = True

    def _is_known(self, *, roughly: bool) -> bool:
        half_width = 2 * _spread(self._differences) / math.sqrt(len(self._differences))
        step_s, own_s = _middle(self._without_s), _middle(self._differences)
        return half_width <= (max(ROUGHLY * step_s, 2 * ROUGHLY * own_s) if roughly else PRECISION * step_s)

    def _go(self, *, off: bool, ends: bool) -> None:
        self._is_done, self.is_under_way = ends, not ends
        self.off, self._began, self._taken = off and not ends, None, 0
        self._length = round(self._usual_length * self._chance.uniform(1 - UNEVEN, 1 + UNEVEN))
        passed, self._passed = self._passed, 0
        self.unseen += passed
        if passed:
            for listener in self.listeners:
                listener(passed)
        if passed or ends:
            self._missed(passed)


def _middle(values: list[float]) -> float:
    """The mean of the middle half: stretches that held something else, such as an epoch's end, are among the others."""
    aside = len(values) // 4
    return statistics.fmean(sorted(values)[aside : len(values) - aside])


def _spread(values: list[float]) -> float:
    """The standard deviation, by the quartiles."""
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 1.349
