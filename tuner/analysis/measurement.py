"""Derives a trial's measurement from its raw records, whenever it is read: nothing derived is stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from tuner.analysis.ranks import is_sound, united
from tuner.analysis.resources import (
    ResourceSample,
    card_use,
    cpu_use,
    energy_use,
    has_strangers,
    held_bytes,
    lost_share,
    peak_host_bytes,
)
from tuner.analysis.rotation import of_the_script_as_written, rotates
from tuner.analysis.stats import Interval, is_steady, rate_interval
from tuner.analysis.sustained import epoch_starts_s, sustained_amounts, validation_share
from tuner.analysis.turns import Turn, gain_interval, neighbouring_pairs, pairs_of_turns
from tuner.child import records as child
from tuner.child import shape
from tuner.child.counts import ScalerCounts
from tuner.child.records import Knowledge, Record
from tuner.child.wire import Entry
from tuner.model import Block, FirstGradient, KnobReport, LossSeries, Measurement, Ratio, Reference, WeightChange

MIN_BLOCKS = 3
SAME_LENGTH = 0.01
"""Sequences are as long as in the script as written where their tokens differ by no more than this share."""
# Of a script that ended during its warm-up, the first part is left out: start-up effects are largest there.
_EARLY_SHARE = 0.2

Kind = TypeVar("Kind", bound=Record)
TimedBlock = tuple[float, child.Block]
"""A block, and the moment of the child's monotonic clock at which it ended."""


@dataclass(frozen=True)
class Beside:
    """What is known of the script as written in its turns between a trial's own: its records, and what was read."""

    entries: Sequence[Entry] = ()
    samples: Sequence[ResourceSample] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", united(self.entries))


NOTHING_BESIDE = Beside()


def measurement_of(
    entries: Sequence[Entry], samples: Sequence[ResourceSample], beside: Beside = NOTHING_BESIDE
) -> Measurement | None:
    """The trial's figures, or None where too few blocks were read to tell a rate; the script's own of a rotation."""
    entries = of_the_script_as_written(united(entries))
    with_validation = _with_validation(entries, beside.entries) if beside.entries else None
    chosen, in_window = _chosen_blocks(entries, with_validation)
    if len(chosen) < MIN_BLOCKS:
        return None
    records = [entry.record for entry in entries]
    knowledge = knowledge_of(records)
    counted = _is_counted([block for _, block in chosen], knowledge)
    blocks = tuple(_measured(block, counted=counted) for _, block in chosen)
    seconds = sum(block.seconds for block in blocks)
    if seconds <= 0 or not any(block.samples for block in blocks):
        return None
    window = _sustained([block for _, block in chosen], knowledge, counted=counted)
    interval = window.rate
    warmup = _before(entries, chosen) if in_window else []
    spans = [(t - block.seconds, t) for t, block in chosen]
    cpus = cpu_use(samples, spans[0][0], spans[-1][1])
    turns = _turns(chosen, window, samples)
    pairs, slower = _pairs(turns, beside, with_validation, counted=counted)
    foreign = _foreign_cpus([own for own, _ in pairs], samples) if pairs else cpus.foreign
    first_step = last_of(records, child.FirstStep) or child.FirstStep(0.0)
    scaler = knowledge.gradient_scaler or ScalerCounts()
    return Measurement(
        rate=interval.estimate,
        low=interval.low,
        high=interval.high,
        steps_per_s=sum(block.steps for block in blocks) / seconds,
        unit=(knowledge.unit or "samples") if counted else "steps",
        blocks=blocks,
        data_wait_share=None if knowledge.wait_is_unseen else window.wait_share,
        peak_host_bytes=peak_host_bytes(samples),
        peak_device_bytes=_peak_device_bytes(records, samples),
        first_step_s=first_step.seconds, spared_s=first_step.spared_s,
        compile_s=sum((record.seconds for record in all_of(records, child.Compile)), 0.0),
        losses=_loss_series(records),
        steady=in_window and _is_whole(records) and is_steady(window.rates),
        cpu_s_per_sample=cpus.own / interval.estimate if interval.estimate > 0 else 0.0,
        foreign_cpus=foreign, wanted_cpus=cpus.wanted,
        knobs=knob_reports(records),
        metrics={metric.name: metric.value for metric in all_of(records, child.Metric)},
        notes=tuple(note.text for note in all_of(records, child.Note)),
        stolen_cpus=min(cpus.stolen, foreign),
        card=card_use(samples, spans[0][0], spans[-1][1]),
        energy=energy_use(samples, spans, interval.estimate if counted and not rotates(entries) else 0.0),
        scaled_steps=scaler.late_steps, skipped_steps=scaler.late_skipped,
        gradient=last_of(records, FirstGradient),
        weights=tuple(all_of(records, WeightChange)),
        first_metrics=_first_metrics(records),
        compile_cache=_compile_cache(records),
        tokens_per_s=window.tokens_per_s,
        queue_share=window.queue_share,
        validation_share=None if any(block.flagged for _, block in chosen) else validation_share(_blocks_of(records)),
        turns=len(turns),
        reference=_reference(window, pairs, slower, beside.samples),
        warmup_extra_s=_extra_s(warmup, window, counted=counted),
    )


@dataclass(frozen=True)
class Slices:
    """A window as it was read: ``pairs`` of neighbouring turns, the trial's own and that of the script as written,
    disturbed ones included; ``blocks`` are what the trial had without any, each as a turn.

    Amounts are what either loop can keep up: the gain by the calm ones of the pairs is that of the measurement.
    ``warmup_s`` are the seconds of training before the window.
    """

    pairs: tuple[tuple[Turn, Turn], ...]
    blocks: tuple[Turn, ...]
    warmup_s: float


def slices_of(
    entries: Sequence[Entry], samples: Sequence[ResourceSample], beside: Beside = NOTHING_BESIDE
) -> Slices | None:
    """The slices of a trial of one config; None where ``measurement_of`` gives None."""
    entries = united(entries)
    with_validation = _with_validation(entries, beside.entries) if beside.entries else None
    chosen, _ = _chosen_blocks(entries, with_validation)
    if len(chosen) < MIN_BLOCKS or measurement_of(entries, samples, beside) is None:
        return None
    knowledge = knowledge_of(entry.record for entry in entries)
    counted = _is_counted([block for _, block in chosen], knowledge)
    window = _sustained([block for _, block in chosen], knowledge, counted=counted)
    turns = _turns(chosen, window, samples)
    pairs, slower = _pairs(turns, beside, with_validation, counted=counted, pair_up=neighbouring_pairs)
    rates = zip(window.rates, (block.seconds for _, block in chosen), strict=True)
    blocks = [Turn(0, rate * seconds * window.slower, seconds) for rate, seconds in rates]
    warmup_s = sum(b.seconds for b in _blocks_of(entry.record for entry in entries) if b.phase == "warmup")
    scaled = [(_times(own, window.slower), _times(other, slower)) for own, other in pairs]
    return Slices(tuple(scaled), () if scaled else tuple(blocks), warmup_s)


def _times(turn: Turn, factor: float) -> Turn:
    return turn._replace(amount=turn.amount * factor)


def _turns(
    blocks: Sequence[TimedBlock], window: _Sustained, samples: Sequence[ResourceSample]
) -> list[Turn]:
    """The window's turns: of each what the loop can keep up, and what others had of the cores."""
    rates = dict(zip(blocks, window.rates, strict=True))
    turns = []
    for number, of in groupby((each for each in blocks if each[1].turn), key=lambda each: each[1].turn):
        timed = list(of)
        amount = sum(rates[each] * each[1].seconds for each in timed)
        lost = lost_share(samples, timed[0][0] - timed[0][1].seconds, timed[-1][0])
        turns.append(Turn(number, amount, sum(block.seconds for _, block in timed), lost))
    return turns


def _pairs(
    turns: Sequence[Turn], beside: Beside, with_validation: bool | None, *, counted: bool,
    pair_up: Callable[[Sequence[Turn], Sequence[Turn]], list[tuple[Turn, Turn]]] = pairs_of_turns,
) -> tuple[list[tuple[Turn, Turn]], float]:  # fmt: skip
    """The pairs of turns that count, and what the rate of the script as written is multiplied by (``slower``).

    None where it had no turns, or is counted in another unit.
    """
    chosen, in_window = _chosen_blocks(beside.entries, with_validation)
    first = min((turn.number for turn in turns), default=0) - 1
    timed = [(t, block) for t, block in chosen if block.turn >= max(1, first)]
    blocks = [block for _, block in timed]
    knowledge = knowledge_of(entry.record for entry in beside.entries)
    if not in_window or not blocks or not turns or counted != _is_counted(blocks, knowledge):
        return [], 1.0
    window = _sustained(blocks, knowledge, counted=counted)
    return pair_up(turns, _turns(timed, window, beside.samples)), window.slower


def _reference(
    own: _Sustained, pairs: Sequence[tuple[Turn, Turn]], slower: float, samples: Sequence[ResourceSample]
) -> Reference | None:
    """The script as written in the same turns; None without pairs."""
    found = gain_interval(pairs)
    if found is None:
        return None
    # What an epoch's start adds to either side is spread over all of its turns alike.
    added = own.slower / slower
    gain = Ratio(*(added * math.exp(min(end, 700.0)) for end in (found.estimate, found.low, found.high)))
    foreign = _foreign_cpus([other for _, other in pairs], samples) if samples else None
    own_s, other_s = (sum(turn.seconds for turn in side) for side in zip(*pairs, strict=True))
    return Reference(own.rate.estimate / gain.ratio, gain, len(pairs), foreign, own_s / (own_s + other_s))


def _foreign_cpus(counting: Sequence[Turn], samples: Sequence[ResourceSample]) -> float:
    """Cores that were lost to others in the turns that count, which are the calm ones where there are enough."""
    lost_s, seconds = sum(turn.lost * turn.seconds for turn in counting), sum(turn.seconds for turn in counting)
    return lost_s / seconds * samples[-1].cores if samples else 0.0


def _is_whole(records: Iterable[Record]) -> bool:
    """Whether the window came to its end."""
    ended = last_of(records, child.WindowEnd)
    return ended is not None and ended.complete


def _is_counted(blocks: Iterable[child.Block], knowledge: Knowledge) -> bool:
    """Whether samples are counted. What seemed to be some at first may have turned out to be none."""
    return knowledge.unit != "steps" and sum(block.samples for block in blocks) > 0


@dataclass(frozen=True)
class _Sustained:
    """What a window's loop can keep up: its rate, that of each block, and the shares that go with them.

    ``queue_share``: of what the loop took, the part that lay ready before. ``tokens_per_s`` is None where every batch
    has as many tokens a sample as those of the script as written. ``slower``: by what the rate is multiplied for the
    epochs' starts and the tokens, and those of the blocks aren't.
    """

    rate: Interval
    rates: Sequence[float]
    wait_share: float
    queue_share: float
    tokens_per_s: float | None
    slower: float


def _sustained(blocks: Sequence[child.Block], knowledge: Knowledge, *, counted: bool) -> _Sustained:
    """In samples where they are ``counted``, else in steps.

    Samples count by their tokens, where those are known of the script as written, too: shorter sequences are no gain.
    """
    seconds = [block.seconds for block in blocks]
    taken = [block.samples if counted else float(block.steps) for block in blocks]
    amounts = sustained_amounts(blocks) if counted else taken
    queued = max(0.0, 1 - sum(amounts) / sum(taken))
    starts_s = 0.0 if knowledge.wait_is_unseen or not counted else epoch_starts_s(blocks, knowledge.epoch)
    total_s = sum(seconds)
    waited = min(1.0, max(0.0, sum(block.wait_s for block in blocks) + starts_s) / (total_s + starts_s))
    length = sum(block.tokens for block in blocks) / sum(taken) if counted else 0.0
    written = knowledge.written_tokens_per_sample
    ratio = length / written if length and written else 1.0
    interval = rate_interval(amounts, seconds)
    slower = total_s / (total_s + starts_s)
    tells_tokens = length > 0 and (knowledge.lengths_vary or abs(ratio - 1) > SAME_LENGTH)
    return _Sustained(
        Interval(*(figure * slower * ratio for figure in (interval.estimate, interval.low, interval.high))),
        [amount / each_s for amount, each_s in zip(amounts, seconds, strict=True)],
        waited + queued * (1 - waited),
        queued,
        interval.estimate * slower * length if tells_tokens else None,
        slower * ratio,
    )


def _before(entries: Iterable[Entry], chosen: Sequence[TimedBlock]) -> list[child.Block]:
    """The blocks of training before the window, from the first step on; by turns those of an earlier window, too."""
    return [block for t, block in _timed_blocks(entries) if t < chosen[0][0] and not block.flagged]


def _extra_s(before: Sequence[child.Block], window: _Sustained, *, counted: bool) -> float:
    """Seconds that these blocks took more than the window would have for as much."""
    amount = sum(block.samples if counted else block.steps for block in before) * window.slower
    rate = window.rate.estimate
    return max(0.0, sum(block.seconds for block in before) - amount / rate) if rate > 0 else 0.0


def _loss_series(records: Sequence[Record]) -> tuple[LossSeries, ...]:
    """The losses, a series for each place in the script, in the order in which they were first seen."""
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    of_step = next((b.samples / b.steps for b in _blocks_of(records) if b.steps and b.samples), 1.0)
    for loss in all_of(records, child.Loss):
        at = of_step if loss.samples == 1.0 else loss.samples  # by the first step none may be counted yet, but itself
        points.setdefault((loss.site, loss.objective or loss.site), []).append((at, loss.value))
    return tuple(LossSeries(site, objective, tuple(values)) for (site, objective), values in points.items())


def _first_metrics(records: Iterable[Record]) -> dict[str, float]:
    """The first value of each metric that was given more than once."""
    given: dict[str, list[float]] = {}
    for metric in all_of(records, child.Metric):
        given.setdefault(metric.name, []).append(metric.value)
    return {name: values[0] for name, values in given.items() if len(values) > 1}


def all_of(records: Iterable[Record], kind: type[Kind]) -> list[Kind]:
    """The records of one type, in their order."""
    return [record for record in records if isinstance(record, kind)]


def last_of(records: Iterable[Record], kind: type[Kind]) -> Kind | None:
    """The last record of one type."""
    return next(reversed(all_of(records, kind)), None)


def knob_reports(records: Iterable[Record]) -> tuple[KnobReport, ...]:
    """The last report of each knob, in the order of their first."""
    return tuple({report.knob: report for report in all_of(records, KnobReport)}.values())


def knowledge_of(records: Iterable[Record]) -> Knowledge:
    """Everything the child said of the script, later over earlier; a field that says nothing leaves the earlier one.

    The ``framework`` is the one that trains: several may have been imported, and a record tells of each.
    """
    fields: dict[str, object] = {}
    for facts in all_of(records, child.Facts):
        fields |= shape.plain(facts)
    return shape.read(Knowledge, fields)


def _compile_cache(records: Iterable[Record]) -> str:
    """Whether what was compiled came out of the compiler's cache. One that counts nothing has none: that is cold."""
    compiled = [record for record in all_of(records, child.Compile) if record.graphs > 0]
    if not compiled:
        return ""
    if not any(record.cache_hits for record in compiled):
        return "cold"
    return "mixed" if any(record.cache_misses for record in compiled) else "warm"


def _with_validation(own: Iterable[Entry], beside: Iterable[Entry]) -> bool:
    """Whether validation counts for both of two trials that took turns: only where one has hardly anything else."""
    windows = (_window_of(_timed_blocks(entries)) for entries in (own, beside))
    return any(sum(not block.flagged for _, block in window) < MIN_BLOCKS for window in windows)


def _timed_blocks(entries: Iterable[Entry]) -> list[TimedBlock]:
    return [(e.t, e.record) for e in entries if isinstance(e.record, child.Block) and is_sound(e.record)]


def _window_of(blocks: Sequence[TimedBlock]) -> list[TimedBlock]:
    """Those after the last warm-up."""
    warmup_ends = max((i for i, (_, block) in enumerate(blocks) if block.phase == "warmup"), default=-1)
    return list(blocks[warmup_ends + 1 :])


def _chosen_blocks(entries: Iterable[Entry], with_validation: bool | None = None) -> tuple[list[TimedBlock], bool]:
    """The blocks that count, and whether they are the window's. ``with_validation``: see ``_without_validation``.

    A recompilation sends the child back to its warm-up: what it took for the window before doesn't count.
    """
    blocks = _timed_blocks(entries)
    window = _without_validation(_window_of(blocks), with_validation)
    if len(window) >= MIN_BLOCKS:
        return window, True
    early = _without_validation(blocks, with_validation)
    return early[max(1, round(len(early) * _EARLY_SHARE)) :], False


def _blocks_of(records: Iterable[Record]) -> list[child.Block]:
    return [block for block in all_of(records, child.Block) if is_sound(block)]


def _without_validation(blocks: Sequence[TimedBlock], keep: bool | None) -> list[TimedBlock]:
    """Flagged blocks hold validation. Where there is hardly anything else the script trains so, and all count; by turns
    that is decided for both sides alike (``keep``). Epochs that are shorter than a block have one of each.
    """
    plain = [(t, block) for t, block in blocks if not block.flagged]
    kept = len(plain) < MIN_BLOCKS and 2 * len(plain) <= len(blocks) if keep is None else keep
    return list(blocks) if kept else plain


def _measured(block: child.Block, *, counted: bool) -> Block:
    """The block as it is stored; steps are what is counted where samples can't be."""
    return Block(block.samples if counted else float(block.steps), block.steps, block.seconds, block.wait_s)


def _peak_device_bytes(records: Iterable[Record], samples: Sequence[ResourceSample]) -> int | None:
    """Reserved by the framework plus what the driver and its libraries hold beside it; None where nobody told."""
    told = all_of(records, child.Memory)
    return max((memory.reserved + _beside(memory, samples) for memory in told), default=None)


def _beside(memory: child.Memory, samples: Sequence[ResourceSample]) -> int:
    """Bytes beside the framework's, as it tells, but for what strangers took since; else by what the driver says of the
    trial's processes: no more than they held at first, before a pool of unknown size had grown, or beside the peak.
    """
    held = held_bytes(samples)
    beyond = max(held, default=0) - memory.reserved
    if memory.pool is None or not held:
        return min(memory.overhead, beyond) if beyond > 0 and has_strangers(samples) else memory.overhead
    beside = max(held) - memory.pool if memory.pool else min(*held, beyond)
    return max(0, beside)
