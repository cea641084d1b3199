"""The plan that tf.data executes: what TensorFlow's own rewriting left of what was asked for, and added to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType

from ...evidence import Finding, at_work_anyway
from ...records import Evidence, PlanLine, Value
from ..types import Dataset, DatasetIterator, ModelProto
from . import shared_out
from .order import is_freed

Plan = Sequence[PlanLine]
"""A line for each node, from the last one down: depth, name, "auto" or a number where it has one to turn, its limit."""
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
Turned = tuple[str, int | str | None]
"""Name of a node, and the number that it is turned to, "auto" or None."""
SAME_PLAN = "TensorFlow runs the same plan by itself"
NOTHING_PARALLEL = "nothing in the input pipeline runs in parallel"


def read(tf: ModuleType, iterator: DatasetIterator) -> Plan:
    """The executed plan; of a strategy's iterator what TensorFlow has rewritten. Raises what these raise."""
    of_replicas = shared_out.dataset_of(iterator)
    if of_replicas is not None:
        return shared_out.read(of_replicas)
    model: ModelProto = tf.data.experimental.get_model_proto(iterator)
    plan: list[PlanLine] = []

    def visit(key: int, depth: int) -> None:
        node = model.nodes[key]
        turned: int | str | None = None
        limit: int | None = None
        for parameter in node.parameters:
            if parameter.name in _TURNED:
                turned = "auto" if parameter.tunable else int(parameter.value)
                limit = int(parameter.max) if parameter.name == "parallelism" else None
        plan.append((depth, node.name, turned, limit))
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

    ``over`` says whether that moment has passed: the first batches have been fetched.
    """

    def __init__(self, tf: ModuleType, over: Callable[[], bool]) -> None:
        self.tf = tf
        self.over = over
        self.plan: Plan | None = None
        self.why_none = "no iterator of the training data was seen"
        self._iterator: DatasetIterator | None = None
        self._thread: threading.Thread | None = None

    def begin(self, iterator: DatasetIterator) -> None:
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
        """Takes the plan if it is whole now; whether there is one."""
        iterator = self._iterator
        if self.plan is None and iterator is not None:
            try:
                plan = read(self.tf, iterator)
            except Exception as error:
                message = (str(error).strip().splitlines() or [""])[0][:200]
                self.why_none = f"TensorFlow doesn't tell its plan: {message}"
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


def _parallel(plan: Plan) -> list[Turned]:
    """Name and parallelism of what runs in parallel."""
    return sorted(((name, turned) for _, name, turned, limit in plan if limit is not None), key=repr)


def _prefetches(plan: Plan) -> list[Turned]:
    """The prefetches behind the batches, and their depths."""
    prefetches: list[Turned] = []
    for _, name, turned, _ in plan:
        if "Batch" in name:
            break
        if name == "Prefetch":
            prefetches.append((name, turned))
    return prefetches


def _caches(plan: Plan) -> list[Turned]:
    return [(name, None) for _, name, *_ in plan if name == "MemoryCache"]


def _maps_of_batches(plan: Plan) -> list[Turned]:
    """The maps behind the batches; one before them is often fused with them."""
    maps: list[Turned] = []
    for _, name, *_ in plan:
        if "Batch" in name:
            break
        if name in ("Map", "ParallelMapV2"):
            maps.append((name, None))
    return maps


_ASPECTS = {
    "parallel_calls": _parallel, "prefetch": _prefetches, "cache": _caches, "vectorized_map": _maps_of_batches,
}  # fmt: skip


def judge(knob: str, requested: Value, plan: Plan, baseline: Plan | None) -> Finding:
    """Whether the executed plan shows the requested value, and whether it does so because of the request.

    TensorFlow caches nothing by itself, but makes calls parallel and prefetches: there the baseline's plan decides.
    """
    if knob == "private_threads":
        return _judge_threads(requested, plan)
    seen = _ASPECTS[knob](plan)
    if baseline is None and knob != "cache":
        return Finding(Evidence.UNVERIFIABLE, "the plan of the script as it is isn't known", _in_words(knob, seen))
    if baseline is not None and seen == _ASPECTS[knob](baseline):
        return at_work_anyway(SAME_PLAN, _in_words(knob, seen))
    values = [turned for _, turned in seen]
    if knob == "parallel_calls":
        # An interleave of fewer files than calls runs as many calls as it has files.
        as_requested = not seen if requested == "none" else requested in values
    elif knob == "prefetch":
        as_requested = requested in values if requested else not seen
    else:
        as_requested = bool(seen) == bool(requested)
    if as_requested:
        return Finding(Evidence.VERIFIED, "", _in_words(knob, seen))
    return Finding(Evidence.CONTRADICTED, f"the plan has {_in_words(knob, seen)}", _in_words(knob, seen))


def _in_words(knob: str, seen: list[Turned]) -> str:
    """In one line, for people: names, numbers, or for calls both."""
    if knob == "parallel_calls":
        return ", ".join(f"{name} {turned}" for name, turned in seen) or "none"
    return ", ".join(str(turned) if knob == "prefetch" else name for name, turned in seen) or "none"


def _judge_threads(requested: Value, plan: Plan) -> Finding:
    """A private pool shows by the limit of what draws on it."""
    limits = {limit for *_, limit in plan if limit is not None}
    if not limits:
        return Finding(Evidence.NOT_APPLICABLE, NOTHING_PARALLEL)
    if requested in limits:
        return Finding(Evidence.VERIFIED, "", requested)
    return Finding(Evidence.CONTRADICTED, f"the plan draws on {max(limits)} threads", max(limits))


def judge_order(dataset: Dataset | None, requested: Value, plan: Plan | None) -> Finding:
    """Whether parallel calls of the dataset that is iterated give their results in order."""
    if plan is not None and not _parallel(plan):
        return Finding(Evidence.NOT_APPLICABLE, NOTHING_PARALLEL)
    if dataset is None:
        return Finding(Evidence.UNVERIFIABLE, "no iterator of the training data was seen")
    freed = is_freed(dataset)
    if freed is None:
        return Finding(Evidence.UNVERIFIABLE, "TensorFlow doesn't show whether an interleave keeps its order")
    if freed != requested:
        return Finding(Evidence.VERIFIED, "", not freed)
    return Finding(Evidence.CONTRADICTED, f"the dataset that is iterated has deterministic={not freed}", not freed)
