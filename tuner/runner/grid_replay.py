"""Serves a recorded grid: what its trials came to, with their noise drawn anew, in the seconds that they took.

Each reading of a trial is a sample of that config's turns; another trial of it would have had others. They are drawn
with replacement from those that were recorded (the bootstrap; Efron, Annals of Statistics 7, 1979), by pairs, so that
what the machine did for both sides of a pair stays with both. What differs from process to process isn't in one trial,
and so is in none of these, but once between a config's trial and its longest recording: a search can be judged by them,
and whether finals prove what they claim can't.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from tuner.analysis.stats import rate_interval
from tuner.analysis.turns import FEWEST_CALM, Turn, calm_pairs, gain_interval, together
from tuner.errors import GridError
from tuner.formatting import config_text
from tuner.knowledge import Knowledge
from tuner.model import (
    BASELINE,
    Block,
    Config,
    KnobReport,
    Measurement,
    Outcome,
    OutcomeKind,
    Phase,
    Ratio,
    Reference,
    Side,
    Trial,
    Value,
)
from tuner.space.resolved import ResolvedSpace
from tuner.storage.grid import Grid, GridReading, GridRow
from tuner.storage.grid_space import space_of

Drawn = TypeVar("Drawn", Turn, tuple[Turn, Turn])
Pair = tuple[Turn, Turn]
Until = Callable[[Sequence[Pair]], bool]
"""Whether a trial that has had these pairs of turns is over."""
_NOT_ITS_OWN = frozenset({OutcomeKind.INFRASTRUCTURE, OutcomeKind.UNFINISHED})
"""What a trial ends as without a fault of its config."""
_MOST_LOG = 700.0
"""Above that a ratio is no number any more."""


class GridReplay:
    """The outcomes of one study on a grid.

    With the same ``seed`` the same configs, served in any order, come to the same; a config that is served again to
    something else, as a second trial of it would. Without a seed every reading is as it was recorded.

    ``longer``: a grid of some of the same configs that were measured for longer. True of these is what it says, since
    the fastest of many short readings are those that had luck; and what fails there, as for want of memory that fills
    up in time, fails here. Raises ``GridError`` for one of another script, or of other knobs and values.

    ``apart``: what is true of a config is what one half of its turns there says, and trials read the other one: else a
    trial that goes on reads what it is judged by, and the highest reading is a better choice than in a study. Which
    half that is depends on the seed and the config.
    """

    def __init__(
        self, grid: Grid, seed: int | None = None, longer: Grid | None = None, *, apart: bool = False
    ) -> None:  # fmt: skip
        self.grid = grid
        self.space: ResolvedSpace = space_of(grid)
        if longer is not None:
            _check_alike(grid, longer)
        self._rows = _rows_of(grid, longer)
        self._longer: Mapping[Config, GridRow] = longer.configs if longer is not None else {}
        self._seed = seed
        self._served: dict[Config, int] = {}
        self._apart = apart
        self._true = {config: _true_gain(row, grid.baseline, _pairs_of(row)) for config, row in self._rows.items()}
        if longer is not None:
            again = {c: row for c, row in longer.configs.items() if c in self._rows and row.kind not in _NOT_ITS_OWN}
            self._true |= {
                config: _true_gain(row, longer.baseline, self._halves(config)[1]) for config, row in again.items()
            }

    def outcome(self, config: Config, until: Until | None = None) -> Outcome:
        """What a trial of the config comes to: as long as it was recorded, or as long as ``until`` says. What comes
        after the recorded turns is drawn from its longest recording. Raises ``GridError`` for one that wasn't recorded.
        """
        row = self._row(config)
        return self._outcome(row, self._next(config), until)

    def longer(self, config: Config, until: Until) -> Outcome:
        """What a fresh process of the config, which no server forks, comes to: drawn from its longest recording, as
        long as ``until`` says. Its seconds are its start's and its own turns'. Raises as ``outcome``.
        """
        return self._outcome(
            self._row(config), f"longer:{self._next(config)}", until, self.start_s(config, fresh=True)
        )

    def _next(self, config: Config) -> str:
        self._served[config] = self._served.get(config, 0) + 1
        return f"{sorted(config.items())}:{self._served[config]}"

    def trials(self) -> list[Trial]:
        """What a study knows before its search: the script as written, and what a probe ran of it."""
        trials = [Trial(0, Phase.BASELINE, BASELINE, "", self._outcome(self.grid.baseline, "baseline"))]
        for row in self.grid.sides:
            outcome = self._outcome(row, f"side:{row.side}")
            trials.append(Trial(len(trials), Phase.PROBE, Config(row.config), "", outcome, side=row.side))
        return trials

    def seconds(self, config: Config) -> float:
        """What the config's trial took. Raises as ``outcome``."""
        return self._row(config).seconds

    def start_s(self, config: Config, *, fresh: bool = False) -> float:
        """What the config's trial took to its first turn, and from its last one to its end; ``fresh``: what it takes to
        its first turn where no server forks it. Raises as ``outcome``.
        """
        row = self._row(config)
        if row.reading is None:
            return row.seconds
        if fresh:
            return row.reading.first_step_s + row.reading.warmup_s
        return max(0.0, row.seconds - sum(pair[1] + pair[4] for pair in row.reading.pairs))

    def true_gain(self, config: Config) -> float:
        """The config's ratio to the script as written by all of its longest recording; 0 where it can't work.

        Raises as ``outcome``.
        """
        self._row(config)
        return self._true[config]

    @property
    def best(self) -> tuple[Config, float]:
        """The config with the highest true gain."""
        config = max(self._true, key=lambda config: self._true[config])
        return config, self._true[config]

    @property
    def total_s(self) -> float:
        """What all trials of configs took together; the probe's aren't among them."""
        return sum(row.seconds for row in self._rows.values())

    def _row(self, config: Config) -> GridRow:
        row = self._rows.get(config)
        if row is None:
            where = f" in {self.grid.place}" if self.grid.place else ""
            raise GridError(
                f"the grid{where} has no config {config_text(config)}",
                hint="it serves what was recorded: canonical configs of its own space (tuner/storage/README.md)",
            )
        return row

    def _outcome(
        self, row: GridRow, what: str, until: Until | None = None, start_s: float | None = None
    ) -> Outcome:  # fmt: skip
        """``start_s``: that of a process that begins with turns of the longest recording; None for one that doesn't."""
        header = self.grid.header
        chance = random.Random(f"{self._seed}:{what}") if self._seed is not None else None
        reading, baseline = row.reading, self.grid.baseline.reading
        assert baseline is not None, "a grid without it isn't read"
        knowledge = Knowledge(
            as_written=dict(header.as_written), framework=header.framework, unit=baseline.unit,
            effective_batch=header.effective_batch,
        )  # fmt: skip
        measurement, seconds = None, row.seconds
        if reading is not None:
            pairs = None
            if until is not None and row.complete and reading.pairs:
                pairs = _taken(self._turns(row, chance, recorded=start_s is None), until)
                own_s, other_s = (sum(turn.seconds for turn in side) for side in zip(*pairs, strict=True))
                recorded_s = sum(pair[1] + pair[4] for pair in reading.pairs)
                seconds = row.seconds + own_s + other_s - recorded_s if start_s is None else start_s + own_s
            measurement = _measurement(reading, row.config, baseline, chance, side=row.side, taken=pairs)
        return Outcome(
            row.kind, row.reason, row.detail, measurement=measurement, knowledge=knowledge, seconds=seconds
        )

    def _turns(self, row: GridRow, chance: random.Random | None, *, recorded: bool) -> Iterator[Pair]:
        """Pairs of turns without end: as many as were ``recorded`` of the short trial first, then the longest's."""
        assert row.reading is not None
        first = _pairs(row.reading)
        yield from _drawn(first, chance) if recorded else ()
        longest = self._halves(Config(row.config))[0] or first
        if chance is None:
            yield from itertools.cycle(longest)
        while chance is not None:
            yield chance.choice(longest)


    def _halves(self, config: Config) -> tuple[list[Pair], list[Pair]]:
        """The pairs of turns of its longer recording that trials read, and those that it is judged by: all of them,
        unless these are ``apart``. Neighbours are alike, so that each half is in one piece.
        """
        row = self._longer.get(config)
        pairs = _pairs_of(row) if row is not None else []
        if not self._apart or len(pairs) < 2 * FEWEST_CALM:
            return pairs, pairs
        middle = len(pairs) // 2
        halves = pairs[:middle], pairs[middle:]
        return halves if random.Random(f"{self._seed}:half:{sorted(config.items())}").random() < 0.5 else halves[::-1]


def _taken(turns: Iterator[Pair], until: Until) -> list[Pair]:
    """The first pairs, two of them at least, up to that with which ``until`` says that the trial is over."""
    taken = list(itertools.islice(turns, 2))
    while not until(taken):
        taken.append(next(turns))
    return taken


def _rows_of(grid: Grid, longer: Grid | None) -> Mapping[Config, GridRow]:
    rows = dict(grid.configs)
    for config, row in longer.configs.items() if longer is not None else ():
        if config in rows and not row.complete and row.kind not in _NOT_ITS_OWN:
            rows[config] = replace(row, seconds=rows[config].seconds)
    return rows


def _check_alike(grid: Grid, longer: Grid) -> None:
    one, other = grid.header, longer.header
    for what, mine, its in (
        ("script", one.script_sha256, other.script_sha256), ("arguments", one.arguments, other.arguments),
        ("knobs and values", one.knobs, other.knobs), ("number of ranks", one.ranks, other.ranks),
    ):  # fmt: skip
        if mine != its:
            raise GridError(
                f"{longer.place or 'the longer grid'} was recorded with another {what} than {grid.place or 'the grid'}",
                hint="record it anew, with --among and all else as the grid was recorded with",
            )


def _measurement(
    reading: GridReading,
    config: Mapping[str, Value],
    baseline: GridReading,
    chance: random.Random | None,
    *,
    side: Side | None,
    taken: Sequence[Pair] | None = None,
) -> Measurement:
    """``taken``: the pairs of turns that the trial had; None where they are drawn, as many as were recorded."""
    pairs, blocks = _pairs(reading), [Turn(0, amount, seconds) for amount, seconds in reading.blocks]
    recorded = together([own for own, _ in pairs] or blocks)
    pairs, blocks = _drawn(pairs, chance) if taken is None else list(taken), _drawn(blocks, chance)
    turns = [own for own, _ in pairs] or blocks
    interval = rate_interval([turn.amount for turn in turns], [turn.seconds for turn in turns])
    # Without turns the machine's drift is in the rate: it is held against the script as written of that time.
    drift = 1.0
    if not pairs and side is None and reading.reference_rate:
        drift = _rate(_turns(baseline)) / reading.reference_rate
    rate, low, high = (figure * drift for figure in (interval.estimate, interval.low, interval.high))
    steps = reading.steps_per_s * recorded.seconds / len(turns)
    wait = reading.wait_share or 0.0
    return Measurement(
        rate=rate, low=low, high=high, steps_per_s=reading.steps_per_s * rate * recorded.seconds / recorded.amount,
        unit=reading.unit,
        blocks=tuple(Block(t.amount * drift, max(1, round(steps)), t.seconds, wait * t.seconds) for t in turns),
        data_wait_share=reading.wait_share, peak_host_bytes=reading.host_bytes, peak_device_bytes=reading.device_bytes,
        first_step_s=reading.first_step_s, compile_s=reading.compile_s, losses=(), steady=reading.steady,
        cpu_s_per_sample=reading.cpu_s_per_sample, foreign_cpus=reading.foreign_cpus, wanted_cpus=reading.wanted_cpus,
        knobs=_reports(reading, config), compile_cache=reading.compile_cache, turns=len(pairs),
        reference=_reference(pairs, rate),
    )  # fmt: skip


def _reports(reading: GridReading, config: Mapping[str, Value]) -> tuple[KnobReport, ...]:
    return tuple(
        KnobReport(each.knob, config.get(each.knob, ""), each.seen, each.changed, each.evidence, of_value=each.of_value)
        for each in reading.knobs
    )


def _reference(pairs: Sequence[tuple[Turn, Turn]], rate: float) -> Reference | None:
    found = gain_interval(pairs)
    if found is None:
        return None
    low, ratio, high = (math.exp(min(end, _MOST_LOG)) for end in (found.low, found.estimate, found.high))
    return Reference(rate / ratio, Ratio(ratio, low, high), len(pairs))


def _pairs(reading: GridReading) -> list[tuple[Turn, Turn]]:
    """The pairs that count."""
    pairs = [
        (Turn(2 * place, own, own_s, own_lost), Turn(2 * place + 1, other, other_s, other_lost))
        for place, (own, own_s, own_lost, other, other_s, other_lost) in enumerate(reading.pairs)
    ]
    return calm_pairs(pairs)


def _turns(reading: GridReading) -> list[Turn]:
    return [own for own, _ in _pairs(reading)] or [Turn(0, amount, seconds) for amount, seconds in reading.blocks]


def _drawn(recorded: Sequence[Drawn], chance: random.Random | None) -> list[Drawn]:
    """So many as were recorded, each any of them."""
    if chance is None or not recorded:
        return list(recorded)
    return chance.choices(recorded, k=len(recorded))


def _rate(turns: Sequence[Turn]) -> float:
    whole = together(turns)
    return whole.amount / whole.seconds


def _pairs_of(row: GridRow) -> list[Pair]:
    return _pairs(row.reading) if row.reading is not None else []


def _true_gain(row: GridRow, baseline: GridRow, pairs: Sequence[Pair]) -> float:
    """``pairs``: those of the row that tell, where it took turns."""
    if not row.complete or row.reading is None or baseline.reading is None:
        return 0.0
    if not row.config:
        return 1.0
    if pairs:
        own, other = together([own for own, _ in pairs]), together([other for _, other in pairs])
        return own.amount / own.seconds / (other.amount / other.seconds)
    return _rate(_turns(row.reading)) / (row.reading.reference_rate or _rate(_turns(baseline.reading)))
