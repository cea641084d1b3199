"""Trials of made-up step times with a known rate: the real step clock and derivation, on a clock of our own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from support.entries import entries_of
from support.in_process import Log
from tuner.analysis.measurement import measurement_of
from tuner.analysis.stats import Floats
from tuner.child.clock import StepClock
from tuner.child.records import Window
from tuner.model import Measurement

NOISES = ("normal", "log-normal", "t3")
AUTOCORRELATIONS = (0.0, 0.5, 0.9)
DRIFTS = (0.0, 0.05)
STEP_S = 0.04
BATCH = 32.0
_MOST_STEPS = 800


@dataclass(frozen=True)
class Weather:
    """How step times scatter: their shape, the correlation of one with the next, the drift in 20 s as a fraction."""

    noise: str
    autocorrelation: float
    drift: float


WEATHERS = tuple(Weather(n, a, d) for n in NOISES for a in AUTOCORRELATIONS for d in DRIFTS)


def step_seconds(weather: Weather, random: np.random.Generator) -> tuple[Floats, Floats]:
    """One trial's step times, and what each was expected to take. A step's standard deviation is a tenth to a third."""
    count = _MOST_STEPS + 100
    shocks = random.standard_t(3, count) / math.sqrt(3) if weather.noise == "t3" else random.standard_normal(count)
    rho, state, states = weather.autocorrelation, 0.0, []
    for shock in shocks.tolist():
        state = rho * state + math.sqrt(1 - rho * rho) * shock
        states.append(state)
    series = np.array(states[-_MOST_STEPS:])
    factors = np.exp(0.3 * series - 0.045) if weather.noise == "log-normal" else np.maximum(1 + 0.1 * series, 0.05)
    expected = STEP_S * (1 + weather.drift * np.arange(_MOST_STEPS) * STEP_S / 20)
    return expected * factors, expected


def measured(weather: Weather, random: np.random.Generator, window: Window) -> tuple[Measurement, float]:
    """One trial's measurement, its window ended by the step clock's own rule, and the rate to be expected in it."""
    seconds, expected = step_seconds(weather, random)
    now, log = [0.0], Log()
    clock = StepClock(log, window, clock=lambda: now[0])
    began = None
    for step, took in enumerate(seconds.tolist()):
        clock.add_samples(BATCH, 0.0)
        now[0] += took
        through = clock.step()
        if began is None and clock.phase == "window":
            began = step + 1
        if through:
            break
    assert clock.complete and began is not None, "the window didn't end"
    found = measurement_of(entries_of([*log.records, {"kind": "window", "complete": True}]), [])
    assert found is not None
    steps = sum(block.steps for block in found.blocks)
    return found, BATCH * steps / float(expected[began : began + steps].sum())


def trials(weather: Weather, count: int, window: Window | None = None) -> Iterator[tuple[Measurement, float]]:
    """So many trials, the same ones every time."""
    random = np.random.default_rng([WEATHERS.index(weather), count])
    for _ in range(count):
        yield measured(weather, random, window or Window())


QUEUE = 64
"""Batches that lie ready when the first step ends: a compilation took so long."""


class Loader:
    """Workers that make a batch about every ``gap_s``, and stand still while ``QUEUE`` batches lie ready."""

    def __init__(self, gap_s: float, random: np.random.Generator) -> None:
        self.ready = QUEUE
        self._gap_s, self._random = gap_s, random
        self._made_at = 0.0

    def work(self, until: float) -> None:
        """What is made by then."""
        while self.ready < QUEUE and self._made_at <= until:
            self.ready += 1
            self._made_at += self._gap()

    def fetch(self, now: float) -> float:
        """Takes a batch; the time at which it was there."""
        self.work(now)
        if not self.ready:
            now = self._made_at
            self.work(now)
        if self.ready == QUEUE:
            self._made_at = now + self._gap()
        self.ready -= 1
        return now

    def _gap(self) -> float:
        return self._gap_s * max(0.05, 1 + 0.3 * float(self._random.standard_normal()))


def queued(share: float, random: np.random.Generator, window: Window) -> tuple[Measurement, float]:
    """One trial that begins with a full queue, its loader as fast as so many of the steps, and the rate it can keep up.

    Without data to wait for, a step takes ``STEP_S``, give or take a tenth.
    """
    now, log = [0.0], Log()
    clock = StepClock(log, window, clock=lambda: now[0])
    loader = Loader(STEP_S / share, random)
    clock.ready = lambda: loader.ready * BATCH
    while not clock.complete:
        there = loader.fetch(now[0])
        clock.add_samples(BATCH, there - now[0])
        now[0] = there + STEP_S * max(0.05, 1 + 0.1 * float(random.standard_normal()))
        loader.work(now[0])
        clock.step()
    found = measurement_of(entries_of([*log.records, {"kind": "window", "complete": True}]), [])
    assert found is not None
    return found, BATCH / STEP_S * min(1.0, share)
