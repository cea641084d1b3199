"""Derives a trial's measurement from its raw records, whenever it is read: nothing derived is stored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tuner.analysis.resources import ResourceSample, card_use, cpu_use, held_bytes, peak_host_bytes
from tuner.analysis.stats import Interval, is_steady, rate_interval
from tuner.analysis.sustained import epoch_starts_s, sustained_amounts, validation_share
from tuner.analysis.turns import Turn, gain_interval, log_gains, ratio_of
from tuner.child import records as child
from tuner.child import shape
from tuner.child.counts import ScalerCounts
from tuner.child.records import Knowledge, Record
from tuner.child.wire import Entry
from tuner.model import Block, FirstGradient, KnobReport, LossSeries, Measurement, Reference, WeightChange

MIN_BLOCKS = 3
SAME_LENGTH = 0.01
"""Sequences are as long as in the script as written where their tokens differ by no more than this share."""
# Of a script that ended during its warm-up, the first part is left out: start-up effects are largest there.
_EARLY_SHARE = 0.2

Kind = TypeVar("Kind", bound=Record)
TimedBlock = tuple[float, child.Block]
"""A block, and the moment of the child's monotonic clock at which it ended."""


def measurement_of(
    entries: Sequence[Entry], samples: Sequence[ResourceSample], beside: Sequence[Entry] = ()
) -> Measurement | None:
    """The trial's figures, or None where too few blocks were read to speak of a rate.

    ``beside``: what the script as written recorded in its turns between the trial's own.
    """
    chosen, in_window = _chosen_blocks(entries)
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
    began, ended = chosen[0][0] - chosen[0][1].seconds, chosen[-1][0]
    cpus = cpu_use(samples, began, ended)
    first_step, ended_as = last_of(records, child.FirstStep), last_of(records, child.WindowEnd)
    complete = ended_as is not None and ended_as.complete
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
        first_step_s=0.0 if first_step is None else first_step.seconds,
        compile_s=sum((record.seconds for record in all_of(records, child.Compile)), 0.0),
        losses=_loss_series(records),
        steady=complete and in_window and is_steady(window.rates),
        cpu_s_per_sample=cpus.own / interval.estimate if interval.estimate > 0 else 0.0,
        foreign_cpus=cpus.foreign,
        knobs=knob_reports(records),
        metrics={metric.name: metric.value for metric in all_of(records, child.Metric)},
        notes=tuple(note.text for note in all_of(records, child.Note)),
        stolen_cpus=cpus.stolen,
        card=card_use(samples, began, ended),
        scaled_steps=scaler.late_steps,
        skipped_steps=scaler.late_skipped,
        gradient=last_of(records, FirstGradient),
        weights=tuple(all_of(records, WeightChange)),
        first_metrics=_first_metrics(records),
        compile_cache=_compile_cache(records),
        tokens_per_s=window.tokens_per_s,
        queue_share=window.queue_share,
        validation_share=None if any(block.flagged for _, block in chosen) else validation_share(_blocks_of(records)),
        turns=len({block.turn for _, block in chosen if block.turn}),
        reference=_reference(window, _turns([block for _, block in chosen], window), beside, counted=counted),
    )


def _turns(blocks: Sequence[child.Block], window: _Sustained) -> list[Turn]:
    return [
        Turn(block.turn, rate * block.seconds, block.seconds)
        for block, rate in zip(blocks, window.rates, strict=True) if block.turn
    ]  # fmt: skip


def _reference(own: _Sustained, turns: Sequence[Turn], beside: Sequence[Entry], *, counted: bool) -> Reference | None:
    """The script as written in the same turns; None where it had none, or is counted in another unit."""
    chosen, in_window = _chosen_blocks(beside)
    first = min((turn.number for turn in turns), default=0) - 1
    blocks = [block for _, block in chosen if block.turn >= max(1, first)]
    knowledge = knowledge_of(entry.record for entry in beside)
    if not in_window or not blocks or not turns or counted != _is_counted(blocks, knowledge):
        return None
    window = _sustained(blocks, knowledge, counted=counted)
    theirs = _turns(blocks, window)
    interval = gain_interval(turns, theirs)
    if interval is None or window.rate.estimate <= 0:
        return None
    gain = ratio_of(own.rate.estimate, window.rate.estimate, interval)
    return Reference(window.rate.estimate, gain, len(log_gains(turns, theirs)))


def _is_counted(blocks: Iterable[child.Block], knowledge: Knowledge) -> bool:
    """Whether samples are counted. What seemed to be some at first may have turned out to be none."""
    return knowledge.unit != "steps" and sum(block.samples for block in blocks) > 0


@dataclass(frozen=True)
class _Sustained:
    """What a window's loop can keep up: its rate, that of each block, and the shares that go with them.

    ``queue_share``: of what the loop took, the part that lay ready before. ``tokens_per_s`` is None where every batch
    has as many tokens a sample as those of the script as written.
    """

    rate: Interval
    rates: Sequence[float]
    wait_share: float
    queue_share: float
    tokens_per_s: float | None


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
    )


def _loss_series(records: Iterable[Record]) -> tuple[LossSeries, ...]:
    """The losses, a series for each place in the script, in the order in which they were first seen."""
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for loss in all_of(records, child.Loss):
        points.setdefault((loss.site, loss.objective or loss.site), []).append((loss.samples, loss.value))
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


def _chosen_blocks(entries: Iterable[Entry]) -> tuple[list[TimedBlock], bool]:
    """The blocks that count, and whether they are the window's.

    A recompilation sends the child back to its warm-up: what it took for the window before doesn't count.
    """
    blocks = [(e.t, e.record) for e in entries if isinstance(e.record, child.Block) and _is_sound(e.record)]
    warmup_ends = max((i for i, (_, block) in enumerate(blocks) if block.phase == "warmup"), default=-1)
    window = _without_validation(blocks[warmup_ends + 1 :])
    if len(window) >= MIN_BLOCKS:
        return window, True
    early = _without_validation(blocks)
    return early[max(1, round(len(early) * _EARLY_SHARE)) :], False


def _blocks_of(records: Iterable[Record]) -> list[child.Block]:
    return [block for block in all_of(records, child.Block) if _is_sound(block)]


def _is_sound(block: child.Block) -> bool:
    """Whether a block's figures can be figures: a script of the user's own may write to any descriptor."""
    return 0 < block.seconds < math.inf and 0 <= block.samples < math.inf and block.steps >= 0


def _without_validation(blocks: Sequence[TimedBlock]) -> list[TimedBlock]:
    """Flagged blocks hold validation. Where they are the majority the script trains so, and all count."""
    plain = [(t, block) for t, block in blocks if not block.flagged]
    return plain if 2 * len(plain) > len(blocks) else list(blocks)


def _measured(block: child.Block, *, counted: bool) -> Block:
    """The block as it is stored; steps are what is counted where samples can't be."""
    return Block(block.samples if counted else float(block.steps), block.steps, block.seconds, block.wait_s)


def _peak_device_bytes(records: Iterable[Record], samples: Sequence[ResourceSample]) -> int | None:
    """Reserved by the framework plus what the driver and its libraries hold beside it; None where nobody told."""
    told = all_of(records, child.Memory)
    return max((memory.reserved + memory.overhead + _beside(memory, samples) for memory in told), default=None)


def _beside(memory: child.Memory, samples: Sequence[ResourceSample]) -> int:
    """Bytes beside a framework that can't tell them, by what the driver says of the trial's processes.

    Where the size of its pool isn't known either they are no more than the processes held at first, before the pool had
    grown, and no more than what they held at last beside the peak.
    """
    held = held_bytes(samples)
    if memory.pool is None or not held:
        return 0
    beside = max(held) - memory.pool if memory.pool else min(*held, max(held) - memory.reserved)
    return max(0, beside)
