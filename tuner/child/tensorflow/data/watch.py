"""tf.data: the datasets that train, made again with the config's knobs when they are consumed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ...session import Session
from . import batches, options, plans, vectorize
from .caches import Place
from .recipes import Node, RecipeBook, Refused

KNOBS = ("batch_size", "parallel_calls", "vectorized_map", "prefetch", "cache", "deterministic", "private_threads")
# A cache is placed in what the script wrote; then come the links below the batch, the batch, and what stands behind.
_ORDER = ("cache", "parallel_calls", "batch_size", "vectorized_map", "prefetch", "deterministic", "private_threads")
FIRST_STEPS = 3
AS_WRITTEN = "the script is written so already"


@dataclass
class Applied:
    """What became of one knob in the datasets that were adapted."""

    sites: int = 0
    changed: int = 0
    refused: str = ""


class DatasetWatch:
    """Records how datasets are made, adapts those that train, and says what became of each knob."""

    def __init__(self, session: Session, tf: ModuleType) -> None:
        self.session = session
        self.tf = tf
        self.book = RecipeBook(tf)
        self.applied: dict[str, Applied] = {}
        self.sizes: dict[int, int] = {}
        self.plans = plans.PlanWatch(tf, lambda: session.finished or session.clock.total_steps > FIRST_STEPS)
        self._met = False
        self._looks = FIRST_STEPS
        self._fed: Callable[[], Any] = lambda: None
        self._cached: Any = None
        self._caches: dict[str, int] = {}

    def install(self) -> None:
        """Patches tf.data's methods, to record only. Under "apply" only if a knob asks for it."""
        if self.session.measuring or any(self.session.wants(knob) for knob in KNOBS):
            self.book.install()

    def is_dataset(self, value: Any) -> bool:
        """Whether it is a tf.data dataset (a distributed one isn't)."""
        return self.book.is_dataset(value)

    # at consumption

    def adapt(self, dataset: Any, *, batched: bool = False) -> Any:
        """The dataset with the config's knobs; the very same object when there is nothing to change.

        ``batched``: its elements are known to be batches (``Model.fit`` takes nothing else), so that a dataset whose
        batcher can't be reached may have its batches cut anew.
        """
        wanted = [knob for knob in _ORDER if self.session.wants(knob)]
        if not wanted or not self.is_dataset(dataset) or not self.tf.executing_eagerly():
            return dataset
        record = self.book.record(dataset)
        if record.adapted is None:
            record.adapted = dataset
            try:
                made = self._made(dataset, wanted, batched)
            except Exception as error:
                self.session.note(f"a dataset could not be changed: {type(error).__name__}: {error}")
                return dataset
            record.adapted = made
            again = self.book.record(made)
            again.adapted, again.written, again.factor = made, dataset, record.factor
        return record.adapted

    def _made(self, dataset: Any, wanted: list[str], batched: bool) -> Any:
        record = self.book.record(dataset)
        try:
            made, applied, record.factor = self._with(dataset, wanted, batched)
        except Exception as problem:
            # The functions of the script are traced anew: one of them can't do with one of the changes.
            made, applied, record.factor = dataset, {}, 1.0
            good: list[str] = []
            for knob in wanted:
                try:
                    made, tried, record.factor = self._with(dataset, [*good, knob], batched)
                    good.append(knob)
                    applied.update(tried)
                except Exception as error:
                    reason = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {_line(error)}"
                    applied[knob] = Applied(1, 0, reason)
            if good == wanted:
                raise problem  # each one works, all of them don't
        for knob, outcome in applied.items():
            self._add(knob, outcome)
        if applied.get("cache", Applied()).changed:
            self._count_cache(self._cached)
        for name, value in vars(dataset).items():
            if not name.startswith("_") and name not in vars(made):
                setattr(made, name, value)  # Keras leaves class_names there
        return made

    def _with(self, dataset: Any, wanted: list[str], batched: bool) -> tuple[Any, dict[str, Applied], float]:
        """The dataset with these knobs, built. Raises whatever its own functions raise."""
        config, tf = self.session.config, self.tf
        node, factor = self.book.read(dataset), 1.0
        applied: dict[str, Applied] = {}
        for knob in wanted:
            value = config[knob]
            try:
                if knob == "batch_size":
                    node, outcome, factor = self._resized(node, dataset, int(value), batched)
                else:
                    node, sites, changed = self._edited(node, dataset, knob, value)
                    outcome = Applied(sites, changed)
            except Refused as refusal:
                outcome = Applied(1, 0, str(refusal))
            applied[knob] = outcome
        made = node.build()
        if applied.get("batch_size", Applied()).changed:
            batches.check_shapes(tf, dataset, made, int(config["batch_size"]))
        return made, applied, factor

    def _resized(self, node: Node, dataset: Any, new: int, batched: bool) -> tuple[Node, Applied, float]:
        old = None
        try:
            found = batches.batchers(node)
            batched, old = True, batches.written_size(found)
            if old == new:
                return node, Applied(len(found)), 1.0
            return batches.resized(node, old, new), Applied(len(found), len(found)), new / old
        except Refused as refusal:
            if refusal.final or not batched:
                raise
        old = old or self._size_told(dataset)
        if old == new:
            return node, Applied(1), 1.0
        batches.check_cuttable(self.tf, dataset)
        drops = any(x.arguments.get("drop_remainder") is True for x in node.all() if x.method in batches.BATCHERS)
        cut = node.then("rebatch", batch_size=new, drop_remainder=drops)
        return cut, Applied(1, 1), new / old if old else 1.0

    def _edited(self, node: Node, dataset: Any, knob: str, value: Any) -> tuple[Node, int, int]:
        if knob == "cache":
            return self._with_cache(node, bool(value))
        if knob == "parallel_calls":
            return options.with_calls(node, value, self.tf)
        if knob == "vectorized_map":
            return vectorize.moved(node, self.tf) if value else (node, 1, 0)
        if knob == "prefetch":
            return options.with_prefetch(node, value, self.tf)
        return options.with_option(node, dataset, knob, value, self.tf)

    def _with_cache(self, node: Node, cached: bool) -> tuple[Node, int, int]:
        if cached:
            place = Place(node)
            self._cached = place.last.dataset
            return place.with_cache(self.book), 1, 1
        if any(x.method == "cache" for x in node.all()):
            raise Refused("the script caches its data itself")
        return node, 1, 0

    def _add(self, knob: str, outcome: Applied) -> None:
        total = self.applied.setdefault(knob, Applied())
        total.sites += outcome.sites
        total.changed += outcome.changed
        total.refused = total.refused or outcome.refused

    def _count_cache(self, dataset: Any) -> None:
        """A cache that is made anew in each epoch never serves."""
        record = self.book.record(dataset)
        if not record.cached:
            record.cached = True
            made_of = " ".join(node.method for node in self.book.read(dataset).all())
            self._caches[made_of] = self._caches.get(made_of, 0) + 1

    # what the script wrote

    def batch_size(self, dataset: Any) -> int | None:
        """The size that the last batcher was written with; None when unknown."""
        if not self.is_dataset(dataset):
            return None
        try:
            return batches.written_size(batches.batchers(self.book.read(self._written(dataset))))
        except Refused:
            return self._size_told(self._written(dataset))

    def _size_told(self, dataset: Any) -> int | None:
        """The size of ready-made batches: by their shapes, else as the baseline counted it."""
        size = batches.leading_size(self.tf, dataset)
        counted = (self.session.knowledge.get("as_written") or {}).get("batch_size")
        return size if size is not None else counted if type(counted) is int else None

    def _written(self, dataset: Any) -> Any:
        written = self.book.record(dataset).written
        return dataset if written is None else written

    def factor(self, dataset: Any) -> float:
        """New batch size by the written one, once adapted; 1.0 when unchanged."""
        return self.book.record(dataset).factor if self.is_dataset(dataset) else 1.0

    def meet(self, dataset: Any, *, batched: bool = False) -> None:
        """A dataset that trains: what the script wrote, and which knobs it leaves no room for. The first one counts."""
        if self._met or not self.is_dataset(dataset):
            return
        self._met = True
        dataset = self._written(dataset)
        self.session.facts["cardinality"] = int(dataset.cardinality())
        node = self.book.read(dataset)
        written, left_out = self.session.as_written, self.session.left_out
        for knob, find in (
            ("batch_size", lambda: self._written_size(node, dataset, batched)),
            ("parallel_calls", lambda: options.written_calls(node)),
            ("vectorized_map", lambda: vectorize.written(node, self.tf)),
            ("prefetch", lambda: options.written_prefetch(node)),
        ):
            try:
                written[knob] = find()
            except Refused as refusal:
                left_out[knob] = str(refusal)
        written.update(options.written_options(dataset))
        written["cache"] = any(x.method in ("cache", "snapshot") for x in node.all())
        try:
            place = Place(node)
        except Refused as refusal:
            left_out["cache"] = str(refusal)
        else:
            self._weigh(place)

    def _weigh(self, place: Place) -> None:
        """What a cache would take, once a study; the first few elements may have to be read for it."""
        known = self.session.knowledge
        weighed = known.get("framework") and "cache" in (known.get("as_written") or {})
        if self.session.measuring and known.get("cache_bytes") is None and not weighed:
            try:
                self.session.facts["cache_bytes"] = place.needed_bytes(self.tf)
            except Exception as error:
                self.session.note(f"what a cache would take could not be measured: {_line(error)}")

    def _written_size(self, node: Node, dataset: Any, batched: bool) -> int | None:
        try:
            return batches.written_size(batches.batchers(node))
        except Refused as refusal:
            if refusal.final or not batched:
                raise
        batches.check_cuttable(self.tf, dataset)
        return self._size_told(dataset)  # None: the batches that were seen tell it in the end

    def kept(self, dataset: Any) -> Any:
        """The dataset's first batch again and again."""
        made = dataset.take(1).cache().repeat()
        record = self.book.record(made)
        record.adapted, record.factor = made, self.factor(dataset)
        return made

    # what ran

    def saw_batch(self, count: int) -> None:
        """A batch of so many samples was trained on."""
        self.sizes[count] = self.sizes.get(count, 0) + 1
        if self._looks:
            self._looks -= 1
            self.plans.look()

    def fed_by(self, iterator: Any) -> None:
        """The live iterator of training, before it is first asked."""
        dataset = getattr(iterator, "_dataset", None)
        if dataset is not None:
            self._fed = weakref.ref(dataset)
        if self.session.measuring:
            self.plans.begin(iterator)

    def observe(self) -> None:
        """Facts, and a report for each knob that was turned here."""
        session = self.session
        self.plans.end()
        if not self._met:
            for knob in KNOBS[1:]:
                if session.wants(knob):
                    session.knob(knob, "not applicable", sites=0, changed=0, reason="no tf.data dataset feeds training")
            return
        if session.as_written.get("batch_size", 0) is None:
            del session.as_written["batch_size"]
            if self._usual_size() is not None and not session.wants("batch_size"):
                session.as_written["batch_size"] = self._usual_size()
        if self.plans.plan is not None:
            session.facts["input_plan"] = self.plans.plan
        for knob in KNOBS:
            if session.wants(knob):
                self._report(knob, session.config[knob])

    def _usual_size(self) -> int | None:
        return max(self.sizes, key=lambda size: self.sizes[size]) if self.sizes else None

    def _report(self, knob: str, requested: Any) -> None:
        found = self.applied.get(knob, Applied())
        if found.refused or not found.sites:
            reason = found.refused or "no dataset of the training was changed"
            verdict = plans.Verdict("not applicable", reason)
        elif knob == "batch_size":
            verdict = self._judge_size(requested)
        elif not found.changed:
            verdict = plans.Verdict("not applicable", AS_WRITTEN)
        elif knob == "deterministic":
            verdict = plans.judge_order(self._fed(), requested, self.plans.plan)
        elif knob == "cache" and max(self._caches.values(), default=0) > 2:
            verdict = plans.Verdict("contradicted", "the script makes its dataset anew each time: no cache lasts")
        elif self.plans.plan is None:
            verdict = plans.Verdict("unverifiable", self.plans.why_none)
        else:
            verdict = plans.judge(knob, requested, self.plans.plan, self.session.knowledge.get("input_plan"))
        self.session.knob(
            knob, verdict.evidence, sites=found.sites, changed=found.changed, reason=verdict.reason,
            observed=verdict.observed,
        )  # fmt: skip

    def _judge_size(self, requested: Any) -> plans.Verdict:
        usual = self._usual_size()
        if usual is None:
            return plans.Verdict("unverifiable", "no batch was counted")
        if usual == requested:
            return plans.Verdict("verified", "", usual)
        return plans.Verdict("contradicted", f"most batches have {usual} samples", usual)


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
