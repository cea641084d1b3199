"""The plan that tf.data executes: what TensorFlow's own rewriting left of what was asked for, and added to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

# A line for each node, from the last one down: depth, name, "auto" or a number where it has one to turn, its limit.
Plan = list[list[Any]]
_TURNED = ("parallelism", "buffer_size")
# Many an iterator makes its input's only when it is first asked, and drops it when that ends: one of these at the
# lower end of a plan says that the plan isn't whole.
_HAVE_INPUTS = (
    "Root", "Prefetch", "BatchV2", "ParallelBatch", "PaddedBatchV2", "RebatchV2", "Shuffle", "ShuffleAndRepeat",
    "FiniteRepeat", "ForeverRepeat", "Map", "ParallelMapV2", "MapAndBatch", "Filter", "ParallelFilter", "FlatMap",
    "Interleave", "ParallelInterleaveV4", "Concatenate", "Zip", "MemoryCache", "FiniteTake", "FiniteSkip", "Unbatch",
    "Scan", "Window",
)  # fmt: skip
# What flows through these is made element by element, as a function of the script's says.
_OPEN_ENDED = ("FlatMap", "Interleave", "ParallelInterleaveV4")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.02
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
        for below in node.inputs[:1] if node.name in _OPEN_ENDED else node.inputs:
            visit(below, depth + 1)

    visit(model.output, 0)
    return plan


def is_whole(plan: Plan) -> bool:
    """Whether each branch goes down to its source."""
    following = [*(line[0] for line in plan[1:]), 0]
    ends = [line[1] for line, depth in zip(plan, following, strict=True) if depth <= line[0]]
    return not any(name in _HAVE_INPUTS for name in ends)


class PlanWatch:
    """Reads the plan of one training iterator while it is whole: for a small dataset that is a moment.

    ``over`` tells when that moment must have passed: the first batches have been fetched.
    """

    def __init__(self, tf: ModuleType, over: Callable[[], bool]) -> None:
        self.tf = tf
        self.over = over
        self.plan: Plan | None = None
        self.why_none = "no iterator of the training data was seen"
        self._iterator: Any = None
        self._thread: threading.Thread | None = None

    def begin(self, iterator: Any) -> None:
        """Looks at once and, from a thread, again and again while the first batches are fetched."""
        if self.plan is not None:
            return
        self._iterator = iterator
        if self.look() or self._iterator is None:
            return
        if self._thread is not None:
            self._iterator = None  # the first one's moment has passed, and nothing of the script's is to be held
        else:
            self._thread = threading.Thread(target=self._look_on, daemon=True, name="autotune-plan")
            self._thread.start()

    def look(self) -> bool:
        """Takes the plan if it is whole now."""
        iterator = self._iterator
        if self.plan is None and iterator is not None:
            try:
                plan = read(self.tf, iterator)
            except Exception as error:
                told = (str(error).strip().splitlines() or [""])[0][:200]
                self.why_none = f"TensorFlow doesn't tell its plan: {told}"
                self._iterator = None
                return False
            if is_whole(plan):
                self.plan, self._iterator = plan, None
            else:
                self.why_none = "the plan was never whole when it was looked at"
        return self.plan is not None

    def _look_on(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self.over() and not self.look() and self._iterator is not None:
            time.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
        self._iterator = None

    def end(self) -> None:
        """The last look; the thread is gone afterwards, and the iterator left to the script."""
        self.look()
        self._iterator = None
        if self._thread is not None:
            self._thread.join()


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


def _maps_of_batches(plan: Plan) -> list[Any]:
    """The maps behind the batches; one before them is often fused with them."""
    found = []
    for _, name, *_ in plan:
        if "Batch" in name:
            break
        if name in ("Map", "ParallelMapV2"):
            found.append(name)
    return found


_ASPECTS = {
    "parallel_calls": _parallel, "prefetch": _prefetches, "cache": _caches, "vectorized_map": _maps_of_batches,
}  # fmt: skip


def judge(knob: str, requested: Any, plan: Plan, baseline: Plan | None) -> Verdict:
    """Whether the plan shows what was asked for, and whether it is due to having been asked for.

    TensorFlow caches nothing by itself, but makes calls parallel and prefetches: there the baseline's plan decides.
    """
    if knob == "private_threads":
        return _judge_threads(requested, plan)
    seen = _ASPECTS[knob](plan)
    if baseline is None and knob != "cache":
        return Verdict("unverifiable", "the plan of the script as it is isn't known", _said(seen))
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
