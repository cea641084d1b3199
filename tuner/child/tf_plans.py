"""The plan that tf.data executes: what TensorFlow's own rewriting left of what was asked for, and added to it."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

# A line for each node, from the last one down: depth, name, "auto" or a number where it has one to turn, its limit.
Plan = list[list[Any]]
_TURNED = ("parallelism", "buffer_size")
SAME_PLAN = "TensorFlow runs the same plan by itself"
NOTHING_PARALLEL = "nothing in the input pipeline runs in parallel"


@dataclass(frozen=True)
class Verdict:
    """What observation says of one knob."""

    evidence: str
    reason: str = ""
    observed: Any = None


def read(tf: ModuleType, iterator: Any) -> Plan:
    """The executed plan. Raises what TensorFlow raises where it tells none: a distributed iterator, no autotuning."""
    model = tf.data.experimental.get_model_proto(iterator)
    plan: Plan = []

    def visit(key: int, depth: int) -> None:
        node = model.nodes[key]
        turned: list[Any] = [None, None]
        for parameter in node.parameters:
            if parameter.name in _TURNED:
                limit = int(parameter.max) if parameter.name == "parallelism" else None
                turned = ["auto" if parameter.tunable else int(parameter.value), limit]
        plan.append([depth, node.name, *turned])
        for below in node.inputs:
            visit(below, depth + 1)

    visit(model.output, 0)
    return plan


def _parallel(plan: Plan) -> list[Any]:
    """Name and parallelism of what runs in parallel."""
    return sorted(([name, turned] for _, name, turned, limit in plan if limit is not None), key=repr)


def _prefetches(plan: Plan) -> list[Any]:
    """The depths of the prefetches behind the batches."""
    found = []
    for _, name, turned, _ in plan:
        if "Batch" in name:
            break
        if name == "Prefetch":
            found.append(turned)
    return found


def _caches(plan: Plan) -> list[Any]:
    return [name for _, name, *_ in plan if name == "MemoryCache"]


_ASPECTS = {"parallel_calls": _parallel, "prefetch": _prefetches, "cache": _caches}


def judge(knob: str, requested: Any, plan: Plan, baseline: Plan | None) -> Verdict:
    """Whether the plan shows what was asked for, and whether it is due to having been asked for."""
    if knob == "private_threads":
        return _judge_threads(requested, plan)
    seen = _ASPECTS[knob](plan)
    if baseline is not None and seen == _ASPECTS[knob](baseline):
        return Verdict("not applicable", SAME_PLAN, _said(seen))
    if knob == "parallel_calls":
        values = [turned for _, turned in seen]
        # An interleave of fewer files than calls runs as many calls as it has files.
        good = not seen if requested == "none" else requested in values
    elif knob == "prefetch":
        good = requested in seen if requested else not seen
    else:
        good = bool(seen) == bool(requested)
    return Verdict("verified" if good else "contradicted", "" if good else f"the plan has {_said(seen)}", _said(seen))


def _said(seen: list[Any]) -> str:
    """In one line, for people."""
    return ", ".join(" ".join(map(str, x)) if isinstance(x, list) else str(x) for x in seen) or "none"


def _judge_threads(requested: Any, plan: Plan) -> Verdict:
    """A private pool shows by the limit of what draws on it."""
    limits = {limit for *_, limit in plan if limit is not None}
    if not limits:
        return Verdict("not applicable", NOTHING_PARALLEL)
    if requested in limits:
        return Verdict("verified", "", requested)
    return Verdict("contradicted", f"the plan draws on {max(limits)} threads", max(limits))


def judge_order(dataset: Any, requested: Any, plan: Plan | None) -> Verdict:
    """The order in which parallel calls give their results is an option of the dataset that is iterated."""
    if plan is not None and not _parallel(plan):
        return Verdict("not applicable", NOTHING_PARALLEL)
    if dataset is None:
        return Verdict("unverifiable", "no iterator of the training data was seen")
    seen = dataset.options().deterministic is not False
    if seen == requested:
        return Verdict("verified", "", seen)
    return Verdict("contradicted", f"the dataset that is iterated has deterministic={seen}", seen)
