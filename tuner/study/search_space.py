"""Chooses a study's search space once the baseline is known, and widens it by what later trials show."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tuner.events import SpaceResolved
from tuner.formatting import config_text
from tuner.knowledge import BOTH, KEEP, widened
from tuner.model import Config, LeftOut, Value
from tuner.space.arguments import bound_knobs
from tuner.space.declare import Known, SearchSpace
from tuner.space.resolve import only_one, resolve, selected_names
from tuner.space.resolved import Axis, ResolvedSpace
from tuner.study.context import StudyContext
from tuner.study.identity import check_space, space_document

NEWER = frozenset({
    "allocator", "attention", "checkpointing", "compile_mode", "grappler_mixed_precision",
    "ddp_bucket_mb", "ddp_bucket_view", "ddp_communication", "ddp_static_graph",
    "loader_prefetch_size", "device_prefetch_size", "host_to_device_transfer_threads", "batches_per_execution",
})  # fmt: skip
"""Knobs that spaces of ours have got since the first studies. Those of others are part of what makes a study."""
NEWER_OF = {
    "jax": frozenset({
        "num_workers", "prefetch_factor", "persistent_workers", "parallel_calls", "vectorized_map", "cache",
        "deterministic", "prefetch", "private_threads", "precision", "read_threads", "read_buffer",
        "donation", "device_prefetch", "steps_per_call",
    }),
}  # fmt: skip
"""The same of one space, whose names others have had before."""


def resolve_space(study: StudyContext) -> None:
    """Sets ``study.space`` to what can be searched of the script, and keeps it in the study's record.

    Raises ``StudyMismatchError`` where an earlier process searched another space, and as ``Spaces.chosen`` and
    ``resolve``.
    """
    plan = study.plan
    asked = [*selected_names(plan.selection), *plan.pinned]
    space = _resolved(study, plan.spaces.chosen(study.knowledge, study.placeholders, asked))
    check_space(study.record.space, space, str(plan.folder))
    # Only now is it sure that the study goes on: one that is refused stays as it was, finished or not.
    study.repository.save_state(study.record.id, "running")
    study.repository.save_space(study.record.id, space_document(space))
    _take(study, space)
    excluded = [
        f"{axis.knob.name}={value}"
        for axis in space.axes
        for value in axis.values
        if not space.allows(space.canonical(Config({axis.knob.name: value})))
        and not space.is_larger({axis.knob.name: value})
    ]
    if excluded:
        study.note(f"not tried, since the effective batch is kept (--effective-batch): {', '.join(excluded)}")
    if not (study.knowledge.framework or plan.spaces.forced):
        study.note(
            "no framework is seen to train: only what the script asks for itself is turned: '{knob}' among its"
            " arguments, and tuner.suggested"
        )
    for axis in space.axes:
        if axis.told:
            study.note(f"{axis.knob.name}: {axis.told}")


def widen_space(study: StudyContext) -> None:
    """Adds to the space what the trials so far have shown of other values of the script's arguments.

    It follows from the trials alone, so that a resumed study comes to the same one.
    """
    space = study.space
    assert space is not None
    knowledge = widened(study.knowledge, bound_knobs(study.placeholders), study.trials)
    if knowledge is study.knowledge:
        return
    study.knowledge = knowledge
    wider = _resolved(study, space.space)
    new = [axis.knob.name for axis in wider.axes if axis.knob.name in space.left_out]
    if new:
        beside = knowledge.beside.get(new[0])
        told = f"with {config_text(beside)} there is" if beside is not None else "there is"
        study.note(f"{told} more to turn: {', '.join(new)}")
        _take(study, wider)


def _resolved(study: StudyContext, space: SearchSpace) -> ResolvedSpace:
    plan = study.plan
    known = Known(plan.device, plan.cores_of_a_rank, knowledge=study.knowledge, spare_cores=plan.spare_cores)
    known = replace(known, ranks=plan.ranks)
    space = without_newer(space, study.record.space.get("knobs", ()))
    asks = study.knowledge.effective_batch == BOTH
    if asks and not plan.objective.is_rate:
        known = replace(known, knowledge=replace(study.knowledge, effective_batch=KEEP))
    begun_with = study.record.space.get("values", {})
    resolved = resolve(space, known, selection=plan.selection, pinned=plan.pinned, begun_with=begun_with)
    if asks and not plan.objective.is_rate:
        why = f"{plan.objective.name} is no rate: it doesn't say how soon a loss is reached"
        resolved = replace(resolved, no_larger=why)
    return as_begun(resolved, begun_with) if begun_with else resolved


def without_newer(space: SearchSpace, begun_with: Collection[str]) -> SearchSpace:
    """The space without the knobs of ours that the version didn't know which began the study (``name:tier``)."""
    known = {entry.partition(":")[0] for entry in begun_with}
    if not known:
        return space
    newer = (NEWER | NEWER_OF.get(space.name, frozenset())) - known
    return replace(space, knobs=tuple(each for each in space.knobs if each.name not in newer))


def as_begun(space: ResolvedSpace, begun_with: Mapping[str, Sequence[Value]]) -> ResolvedSpace:
    """The space as an earlier version began the study: without more workers than cores, where it knew none, and with
    each knob's values in its order.
    """
    axes, left_out = list[Axis](), dict(space.left_out)
    for axis in map(partial(_in_order, begun_with=begun_with), space.axes):
        name, written = axis.knob.name, axis.values[axis.as_written]
        few = tuple(v for v in axis.values if v == written or (type(v) is int and v <= space.cores))
        if not axis.knob.waits_at_times or tuple(begun_with.get(name, few[:1])) != few:
            axes.append(axis)
        elif len(few) > 1:
            axes.append(replace(axis, values=few, as_written=few.index(written)))
        else:
            left_out[name] = LeftOut(only_one(written))
    return replace(space, axes=tuple(axes), left_out=left_out)


def _in_order(axis: Axis, begun_with: Mapping[str, Sequence[Value]]) -> Axis:
    """The axis with the same values in the order that they have there, where they are the same."""
    order = tuple(begun_with.get(axis.knob.name, ()))
    if sorted(map(repr, order)) != sorted(map(repr, axis.values)):
        return axis
    return replace(axis, values=order, as_written=order.index(axis.values[axis.as_written]))


def _with_larger(space: ResolvedSpace) -> dict[str, tuple[object, ...]]:
    """Knob → its values, larger effective batches among them, and what spares memory for these."""
    values: dict[str, tuple[object, ...]] = {axis.knob.name: axis.values for axis in space.axes}
    if space.larger is not None:
        name = space.larger.knob.name
        values[name] = tuple(dict.fromkeys([*values.get(name, ()), *space.larger.values]))
    if space.lighter is not None:
        values[space.lighter.knob.name] = space.lighter.values
    return values


def _take(study: StudyContext, space: ResolvedSpace) -> None:
    study.space, values = space, _with_larger(space)
    study.tell(
        SpaceResolved(
            values, {name: space.knowledge.as_written[name] for name in values}, dict(space.left_out), space.pinned,
            space.size, frozenset(values) - {axis.knob.name for axis in space.axes},
        )
    )  # fmt: skip
