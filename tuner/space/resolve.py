"""Makes of a space what a study searches of it, once the baseline has shown what the script wrote."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tuner.errors import UsageError
from tuner.knowledge import BOTH, FREE, KEEP, Knowledge
from tuner.model import BASELINE, Config, LeftOut, Value, same_value
from tuner.space.declare import Knob, Known, SearchSpace
from tuner.space.resolved import Axis, ResolvedSpace, index_in, places_of

MOST_LOOKED_AT = 20_000
"""In spaces of more configs nobody looks whether a knob means something in any: what doesn't is dropped as well."""
_LARGER_TRIED = "larger effective batches are tried all the same"
_FOR_LARGER = "it spares memory for larger batches, and none are tried"


def resolve(
    space: SearchSpace,
    known: Known,
    *,
    selection: Sequence[str] = (),
    pinned: Mapping[str, Value] = BASELINE,
    begun_with: Collection[str] = (),
) -> ResolvedSpace:
    """What can be searched of the space, given what the baseline showed.

    ``selection`` holds knob names to search, or ``-name`` to leave one out; empty means all. ``pinned`` knobs have that
    value in every config. ``begun_with``: knobs that a study searches already, which stay.
    Raises ``UnknownKnobError`` for names that the space doesn't declare, ``UsageError`` for a pinned word that is none
    of the knob's values here.
    """
    for name in [*pinned, *selected_names(selection)]:
        space.knob(name)
    for name, value in pinned.items():
        _check_word(space.knob(name), value, known)
    wanted = {entry for entry in selection if not entry.startswith("-")}
    unwanted = {entry[1:] for entry in selection if entry.startswith("-")}
    known = replace(known, knowledge=_beside_pins(known.knowledge, pinned))
    knowledge = known.knowledge
    left_out: dict[str, LeftOut] = {}
    axes: list[Axis] = []
    lighter: list[Axis] = []
    for knob in space.knobs:
        if knob.name not in pinned and (knob.name in unwanted or (wanted and knob.name not in wanted)):
            left_out[knob.name] = LeftOut("not selected", unselected=True)
            continue
        if _is_silent(knob, known) and knob.name not in {*wanted, *pinned}:
            continue
        reason = _reason_to_leave_out(knob, known, pinned)
        if reason:
            left_out[knob.name] = LeftOut(reason)
            continue
        written = knowledge.as_written[knob.name]
        beside = replace(known, as_written=written)
        values = _distinct([written, *knob.choices(beside)], ordered=knob.ordered)
        if len(values) < 2:
            left_out[knob.name] = LeftOut(only_one(written))
            continue
        told, unlikely = (said(beside) if said is not None else "" for said in (knob.told, knob.unlikely))
        of = lighter if knob.spares_memory else axes
        of.append(_axis(knob, knowledge, values, told, unlikely))
    larger, no_larger = _larger(space, known, pinned, wanted, unwanted)
    for axis in _meaningless(space, known, pinned, axes, [*lighter, *([larger] if larger is not None else [])]):
        if axis.knob.name not in begun_with:
            axes.remove(axis)
            left_out[axis.knob.name] = LeftOut(_what_it_lacks(axis.knob, space, known, pinned))
    if larger is not None and (kept := left_out.get(larger.knob.name)) is not None:
        left_out[larger.knob.name] = replace(kept, reason=f"{kept.reason}; {_LARGER_TRIED}")
    left_out |= {axis.knob.name: LeftOut(_FOR_LARGER) for axis in lighter if larger is None}
    if larger is None and knowledge.effective_batch == BOTH:
        # What follows from a batch is as where it is kept: a pinned one, say, is the user's own choice.
        knowledge = replace(knowledge, effective_batch=KEEP)
    return ResolvedSpace(
        space, tuple(axes), left_out, Config(pinned), knowledge, known.cores, larger, no_larger, known.device,
        known.spare_cores, lighter[0] if larger is not None and lighter else None, known.ranks,
    )  # fmt: skip


def _meaningless(
    space: SearchSpace, known: Known, pinned: Mapping[str, Value], axes: Sequence[Axis], beside: Sequence[Axis]
) -> list[Axis]:
    """The axes that mean nothing in any config, whatever the others are, ``beside`` among them."""
    found: list[Axis] = []
    for axis in axes:
        needs, values = axis.knob.needs, dict[str, tuple[Value, ...]]()
        for other in (*axes, *beside):
            if other is not axis and other not in found:
                values[other.knob.name] = (*values.get(other.knob.name, ()), *other.values)
        if needs is None or math.prod(map(len, values.values())) > MOST_LOOKED_AT:
            continue
        written = {**known.knowledge.as_written, **pinned}
        configs = ({**written, **dict(zip(values, each, strict=True))} for each in itertools.product(*values.values()))
        if not any(needs({**config, **space.derive(config, known.knowledge), **pinned}) for config in configs):
            found.append(axis)
    return found


def _what_it_lacks(knob: Knob, space: SearchSpace, known: Known, pinned: Mapping[str, Value]) -> str:
    """Why a knob means nothing: another one that is as it is, by the first that would give it a meaning."""
    config = {**known.knowledge.as_written, **pinned}
    for other in space.knobs:
        written = known.knowledge.as_written.get(other.name)
        choices = other.choices(replace(known, as_written=written)) if written is not None else ()
        if knob.needs is not None and any(knob.needs({**config, other.name: value}) for value in choices):
            return f"it means nothing with {other.name}={config[other.name]}"
    return "it means nothing beside what is searched"


def _larger(
    space: SearchSpace, known: Known, pinned: Mapping[str, Value], wanted: Collection[str], unwanted: Collection[str]
) -> tuple[Axis | None, str]:
    """The larger batches that are tried beside those that keep the effective one, or why there are none."""
    knob = space.larger
    if knob is None or known.knowledge.effective_batch != BOTH:
        return None, ""
    if knob.name in unwanted or (wanted and knob.name not in wanted):
        return None, ""
    reason = _reason_to_leave_out(knob, known, pinned)
    if reason:
        return None, reason
    if not _admits(space, pinned, known):
        return None, "what is pinned changes the effective batch by itself"
    written = known.knowledge.as_written[knob.name]
    offered = knob.choices(replace(known, as_written=written))
    larger = [v for v in offered if _is_above(v, written) and not _admits(space, {knob.name: v}, known)]
    values = _distinct([written, *larger], ordered=True)
    if len(values) < 2:
        return None, "no larger batch fits into an epoch"
    return _axis(knob, known.knowledge, values), ""


def _beside_pins(knowledge: Knowledge, pinned: Mapping[str, Value]) -> Knowledge:
    """What is known, with a pinned accumulation as one that can't be turned: no batch size is made up for by it."""
    name = "grad_accumulation"
    if name not in pinned or name in knowledge.left_out or knowledge.effective_batch == FREE:
        return knowledge
    return replace(knowledge, left_out={**knowledge.left_out, name: f"{name} is pinned to {pinned[name]}"})


def _admits(space: SearchSpace, config: Mapping[str, Value], known: Known) -> bool:
    """Whether the space's own constraints admit the config, with what follows from it beside what is given."""
    complete = {**known.knowledge.as_written, **config}
    return space.allowed({**complete, **space.derive(complete, known.knowledge), **config}, known.knowledge)


def _is_above(value: Value, written: Value) -> bool:
    return isinstance(value, (int, float)) and isinstance(written, (int, float)) and value > written


def _axis(knob: Knob, knowledge: Knowledge, values: tuple[Value, ...], told: str = "", unlikely: str = "") -> Axis:
    as_written = index_in(places_of(values), knowledge.as_written[knob.name])
    return Axis(_beside_its_arguments(knob, knowledge), values, as_written, told, unlikely)


def _beside_its_arguments(knob: Knob, knowledge: Knowledge) -> Knob:
    """The knob; where the script has it only beside other values of its arguments, it means nothing without them."""
    arguments = knowledge.beside.get(knob.name)
    if arguments is None:
        return knob
    needs = knob.needs or (lambda config: True)
    return replace(knob, needs=lambda c: all(same_value(c.get(name), v) for name, v in arguments.items()) and needs(c))


def only_one(written: Value) -> str:
    """Why a knob is left out of which only the script's own value is worth trying."""
    return f"only one value makes sense here: {str(written).lower() if isinstance(written, bool) else written}"


def selected_names(selection: Sequence[str]) -> list[str]:
    """The knobs that a selection speaks of, also those that it leaves out."""
    return [entry.removeprefix("-") for entry in selection]


def _check_word(knob: Knob, value: Value, known: Known) -> None:
    """A number may be any; of words there are only those that the knob offers here, or that the script wrote."""
    if knob.value_type is not str or knob.name in known.knowledge.placeholders:
        return
    written = known.knowledge.as_written.get(knob.name)
    offered = [*knob.choices(replace(known, as_written=written)), *([] if written is None else [written])]
    if value not in offered:
        words = ", ".join(dict.fromkeys(str(word) for word in offered))
        raise UsageError(f"{knob.name}={value}: that is none of its values here", hint=f"they are: {words}")


def _is_silent(knob: Knob, known: Known) -> bool:
    """Whether it means nothing here, and nobody is told of it."""
    elsewhere = not knob.is_on(known.device.kind)
    unmet = knob.name not in {**known.knowledge.as_written, **known.knowledge.left_out}
    return (
        (knob.for_ranks and known.ranks == 1) or (knob.silent_elsewhere and elsewhere) or (knob.silent_unmet and unmet)
    )


def _reason_to_leave_out(knob: Knob, known: Known, pinned: Mapping[str, Value]) -> str:
    """The reason, for people; "" where the knob is an axis."""
    knowledge = known.knowledge
    if knob.name in pinned:
        return f"pinned to {pinned[knob.name]}"
    if not knob.is_on(known.device.kind):
        return f"means nothing on {known.device.kind}"
    if knob.name in knowledge.left_out:
        return knowledge.left_out[knob.name]
    if knob.name not in knowledge.as_written:
        return knob.unmet or "nothing in the script that it could turn"
    written = knowledge.as_written[knob.name]
    if knob.value_type is int and type(written) is not int:
        return f"the script's own value is {written}, which is no whole number"
    return knob.refuses(known) if knob.refuses is not None else ""


def _distinct(values: Sequence[Value], *, ordered: bool) -> tuple[Value, ...]:
    """Values without repeats (True is not 1 here), sorted where the knob is ordered."""
    seen: dict[tuple[str, Value], Value] = {}
    for value in values:
        seen.setdefault((type(value).__name__, value), value)
    distinct = list(seen.values())
    if ordered:
        distinct.sort(key=lambda v: float(v) if isinstance(v, (int, float)) else 0.0)
    return tuple(distinct)
