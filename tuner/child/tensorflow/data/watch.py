"""tf.data: the datasets that train, made again with the config's knobs when they are consumed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType

from ...evidence import Finding, at_work_anyway
from ...knobs import not_as_studied
from ...records import Evidence, Value
from ...session import Session
from ..types import Dataset, DatasetIterator
from . import batches, options, order, plans, shared_out, vectorize
from .caches import Place, watch_tables
from .filling import Filling
from .recipes import Node, RecipeBook
from .refused import Applied, Refused, line_of

KNOBS = ("batch_size", "parallel_calls", "vectorized_map", "prefetch", "cache", "deterministic", "private_threads")
# A cache is placed in what the script wrote; then come the links below the batch, the batch, and what stands behind.
_ORDER = ("cache", "parallel_calls", "batch_size", "vectorized_map", "prefetch", "deterministic", "private_threads")
FIRST_STEPS = 3
AS_WRITTEN = "the script is written so already"


class DatasetWatch:
    """Records how datasets are made, adapts those that train, and reports what became of each knob.

    ``newest_factor``: the new batch size by the written one, of the dataset that was adapted last.
    """

    def __init__(self, session: Session, tf: ModuleType) -> None:
        self.session = session
        self.tf = tf
        self.book = RecipeBook(tf)
        self.applied: dict[str, Applied] = {}
        self.sizes: dict[int, int] = {}
        self.newest_factor = 1.0
        self.plans = plans.PlanWatch(tf, lambda: session.finished or session.clock.total_steps > FIRST_STEPS)
        self._met = False
        self._looks = FIRST_STEPS
        self._feeding: Callable[[], Dataset | None] = lambda: None
        self._cached: Place | None = None
        self._caches: dict[str, int] = {}
        self.filling = Filling(session, self._trained)

    def install(self) -> None:
        """Patches tf.data's methods, to record only. Under "apply" only if a knob asks for it."""
        if self.session.measuring or any(map(self.session.knobs.wants, (*KNOBS, "grad_accumulation"))):
            self.book.install()
            watch_tables(self.tf)

    def is_dataset(self, value: object) -> bool:
        """Whether it is a tf.data dataset (a distributed one isn't)."""
        return self.book.is_dataset(value)

    # at consumption

    def adapt(
        self, dataset: Dataset, *, batched: bool = False, parts: int = 1, resizes: bool = True
    ) -> Dataset:
        """The dataset with the config's knobs; the very same object when there is nothing to change.

        ``batched``: its elements are known to be batches (``Model.fit`` takes nothing else), so that a dataset whose
        batcher can't be reached may have its batches cut anew. ``parts``: into how many a step splits its batch: so
        many times larger it has to be. ``resizes``: whether its batches may be changed at all.
        """
        wants = self.session.knobs.wants
        wanted = [knob for knob in _ORDER if wants(knob) or (knob == "batch_size" and parts > 1)]
        wanted = [knob for knob in wanted if knob != "batch_size" or resizes]
        if not wanted or not self.is_dataset(dataset) or not self.tf.executing_eagerly():
            return dataset
        record = self.book.record(dataset)
        if record.adapted is None or record.resizes != resizes:
            record.adapted, record.resizes = dataset, resizes
            try:
                adapted = self._adapted(dataset, wanted, batched, parts)
            except Exception as error:
                self.session.note(f"a dataset could not be changed: {type(error).__name__}: {error}")
                return dataset
            record.adapted = adapted
            self.newest_factor = record.factor
            its_record = self.book.record(adapted)
            its_record.adapted, its_record.written, its_record.factor = adapted, dataset, record.factor
            its_record.resizes = resizes
        return record.adapted

    def _adapted(self, dataset: Dataset, wanted: list[str], batched: bool, parts: int) -> Dataset:
        """With every knob that works here. Raises ``Exception`` where each works by itself, and all together don't."""
        record = self.book.record(dataset)
        try:
            adapted, applied, record.factor = self._with(dataset, wanted, batched, parts)
        except Exception as problem:
            # The functions of the script are traced anew: one of them can't do with one of the changes.
            adapted, applied, record.factor = dataset, {}, 1.0
            working: list[str] = []
            for knob in wanted:
                try:
                    adapted, outcomes, record.factor = self._with(dataset, [*working, knob], batched, parts)
                    working.append(knob)
                    applied.update(outcomes)
                except Exception as error:
                    applied[knob] = Applied.not_for(error, knob)
            if working == wanted:
                raise problem
        for knob, outcome in applied.items():
            self._add(knob, outcome)
        if applied.get("cache", Applied()).changed and self._cached is not None:
            self._count_cache(self._cached.last.own)
            self.filling.begins(self._cached)
            self._cached = None  # it holds the datasets of the script
        for name, value in vars(dataset).items():
            if not name.startswith("_") and name not in vars(adapted):
                setattr(adapted, name, value)  # Keras leaves class_names there
        return adapted

    def _with(
        self, dataset: Dataset, wanted: list[str], batched: bool, parts: int
    ) -> tuple[Dataset, dict[str, Applied], float]:
        """The dataset with these knobs, what became of each, its batch factor. Raises what its own functions raise."""
        config, tf = self.session.request.config, self.tf
        node, factor = self.book.read(dataset), 1.0
        applied: dict[str, Applied] = {}
        for knob in wanted:
            if knob != "batch_size":
                node, applied[knob] = self._turned(node, dataset, knob, config[knob])
                continue
            try:
                node, applied[knob], factor = self._resized(node, dataset, batched, parts)
            except Refused as refusal:
                applied[knob] = Applied.not_for(refusal, knob)
        adapted = node.build()
        resized = applied.get("batch_size", Applied())
        if resized.changed:
            batches.check_shapes(tf, dataset, adapted, resized.size)
        return adapted, applied, factor

    def turned(self, dataset: Dataset, config: Mapping[str, Value]) -> tuple[Node, dict[str, Applied]]:
        """How the dataset would be made with the knobs of this config, but its batch size, and what became of each.

        Nothing of it is made or counted.
        """
        node, applied = self.book.read(dataset), dict[str, Applied]()
        for knob in _ORDER:
            if knob in config and knob != "batch_size":
                node, applied[knob] = self._turned(node, dataset, knob, config[knob])
        return node, applied

    def _turned(self, node: Node, dataset: Dataset, knob: str, value: Value) -> tuple[Node, Applied]:
        try:
            node, sites, changed = self._edited(node, dataset, knob, value)
            return node, Applied(sites, changed)
        except Refused as refusal:
            return node, Applied.not_for(refusal, knob)

    def _resized(self, node: Node, dataset: Dataset, batched: bool, parts: int) -> tuple[Node, Applied, float]:
        """With batches of ``parts`` times as many samples as the config has in one forward pass."""
        wanted, old = self.session.knobs.wanted("batch_size"), None
        try:
            nodes = batches.batchers(node)
            batched, old = True, batches.written_size(nodes)
            self._check_size(old)
            new = int(wanted or old) * parts
            if old == new:
                return node, Applied(len(nodes)), 1.0
            return batches.resized(node, old, new), Applied(len(nodes), len(nodes), size=new), new / old
        except Refused as refusal:
            if refusal.final or not batched:
                raise
        old = old or self._size_by_shape(dataset)
        if not (wanted or old):
            raise Refused("the batch size isn't known")
        self._check_size(old)
        new = int(wanted or old or 0) * parts
        if old == new:
            return node, Applied(1), 1.0
        batches.check_cuttable(self.tf, dataset)
        drops = any(x.arguments.get("drop_remainder") is True for x in node.all() if x.method in batches.BATCHERS)
        cut = node.then("rebatch", batch_size=new, drop_remainder=drops)
        return cut, Applied(1, 1, size=new), new / old if old else 1.0

    def _check_size(self, size: int | None) -> None:
        """Raises ``Refused`` for batches of another size than those that the config is for: a later stage's, say."""
        why = not_as_studied("its batches have", size, self.session.request.knowledge.as_written.get("batch_size"))
        if why:
            raise Refused(why, final=True)

    def _edited(self, node: Node, dataset: Dataset, knob: str, value: Value) -> tuple[Node, int, int]:
        if knob == "cache":
            return self._with_cache(node, bool(value))
        if knob == "parallel_calls":
            return options.with_calls(node, dataset, options.as_calls(value), self.tf)
        if knob == "vectorized_map":
            return vectorize.moved(node, self.tf) if value else (node, 1, 0)
        if knob == "prefetch":
            return options.with_prefetch(node, options.as_calls(value), self.tf)
        if knob == "deterministic":
            return (order.kept if value else order.freed)(node, dataset, self.tf)
        return options.with_threads(node, dataset, int(value), self.tf)

    def _with_cache(self, node: Node, cached: bool) -> tuple[Node, int, int]:
        if cached:
            place = Place(node)
            self._cached = place
            return place.with_cache(self.book), 1, 1
        if any(x.method == "cache" for x in node.all()):
            raise Refused("the script caches its data itself")
        return node, 1, 0

    def _add(self, knob: str, outcome: Applied) -> None:
        total = self.applied.setdefault(knob, Applied())
        total.sites += outcome.sites
        total.changed += outcome.changed
        total.of_value = outcome.of_value if outcome.refused and not total.refused else total.of_value
        total.refused = total.refused or outcome.refused

    def _count_cache(self, dataset: Dataset) -> None:
        """Counts the caches over what is made alike: one that is made anew in each epoch is never read."""
        record = self.book.record(dataset)
        if not record.cached:
            record.cached = True
            methods = self.made_by(dataset)
            self._caches[methods] = self._caches.get(methods, 0) + 1

    def made_by(self, dataset: Dataset) -> str:
        """The methods that made the dataset, the same where the script makes it anew."""
        return " ".join(node.method for node in self.book.read(dataset).all())

    # what the script wrote

    def batch_size(self, dataset: Dataset) -> int | None:
        """The size that the last batcher was written with; None when unknown."""
        if not self.is_dataset(dataset):
            return None
        try:
            return batches.written_size(batches.batchers(self.book.read(self._written(dataset))))
        except Refused:
            return self._size_by_shape(self._written(dataset))

    def batch_sizes(self, dataset: Dataset) -> frozenset[int] | None:
        """Of all that make its batches, as it runs; empty where nothing batches, None where that isn't known."""
        sizes, factor = batches.sizes_given(self.book.read(self._written(dataset))), self.factor(dataset)
        return sizes and frozenset(round(size * factor) for size in sizes)

    def _size_by_shape(self, dataset: Dataset) -> int | None:
        """The size of ready-made batches: by their shapes, else as the baseline counted it."""
        size = batches.leading_size(self.tf, dataset)
        counted = self.session.request.knowledge.as_written.get("batch_size")
        return size if size is not None else counted if type(counted) is int else None

    def _written(self, dataset: Dataset) -> Dataset:
        written = self.book.record(dataset).written
        return dataset if written is None else written

    @property
    def prefetched(self) -> int | str:
        """Batches that the data which train are prefetched by, "auto" or a number; 0 where that isn't known."""
        turned = self.applied.get("prefetch", Applied()).changed
        depth = (self.session.request.config if turned else self.session.facts.as_written).get("prefetch")
        return depth if self._met and isinstance(depth, (int, str)) else 0

    def refused(self, knob: str) -> str:
        """Why the knob could not be turned in a dataset that was adapted; "" where it could."""
        return self.applied.get(knob, Applied()).refused

    def factor(self, dataset: Dataset) -> float:
        """New batch size by the written one, once adapted; 1.0 when unchanged."""
        return self.book.record(dataset).factor if self.is_dataset(dataset) else 1.0

    def meet(self, dataset: Dataset, *, batched: bool = False) -> None:
        """A dataset that trains: what the script wrote, and which knobs it leaves no room for. The first one counts."""
        if self._met or not self.is_dataset(dataset):
            return
        self._met = True
        dataset = self._written(dataset)
        self.session.facts.cardinality = int(dataset.cardinality())
        node = self.book.read(dataset)
        written, left_out = self.session.facts.as_written, self.session.facts.left_out
        for knob, find in (
            ("batch_size", lambda: self._written_size(node, dataset, batched)),
            ("parallel_calls", lambda: options.written_calls(node)),
            ("vectorized_map", lambda: vectorize.written(node, self.tf)),
            ("prefetch", lambda: options.written_prefetch(node)),
            ("deterministic", lambda: order.written(node, dataset)),
        ):
            try:
                written[knob] = find()
            except Refused as refusal:
                left_out[knob] = str(refusal)
        written["private_threads"] = options.written_threads(dataset)
        written["cache"] = any(x.method in ("cache", "snapshot") for x in node.all())
        self.filling.met(node)
        try:
            place = Place(node)
        except Refused as refusal:
            left_out["cache"] = str(refusal)
        else:
            self._measure_cache(place)

    def _measure_cache(self, place: Place) -> None:
        """Bytes that a cache would take, once a study; the first few elements may have to be read for it."""
        known = self.session.request.knowledge
        is_known = known.cache_bytes is not None or (known.framework and "cache" in known.as_written)
        if self.session.measuring and not is_known:
            try:
                self.session.facts.cache_bytes = place.needed_bytes(self.tf)
            except Exception as error:
                self.session.note(f"what a cache would take could not be measured: {line_of(error)}")

    def _written_size(self, node: Node, dataset: Dataset, batched: bool) -> int | None:
        try:
            return batches.written_size(batches.batchers(node))
        except Refused as refusal:
            if refusal.final or not batched:
                raise
        batches.check_cuttable(self.tf, dataset)
        return self._size_by_shape(dataset)  # None: the batches that were seen tell it in the end

    # what ran

    def saw_batch(self, count: int) -> None:
        """So many samples were trained on in one forward pass."""
        self.sizes[count] = self.sizes.get(count, 0) + 1
        if self._looks:
            self._looks -= 1
            self.plans.look()

    def _trained(self) -> float:
        return max(float(sum(size * count for size, count in self.sizes.items())), self.session.clock.total_samples)

    def fed_by(self, iterator: DatasetIterator) -> None:
        """The iterator that training fetches from, before its first fetch."""
        dataset = shared_out.dataset_of(iterator) or getattr(iterator, "_dataset", None)
        if dataset is not None:
            self._feeding = weakref.ref(dataset)
        if self.session.measuring:
            self.plans.begin(iterator)

    def observe(self) -> None:
        """Sends facts, and a report for each knob of the config that is turned here."""
        session = self.session
        self.plans.end()
        if not self._met:
            for knob in KNOBS[1:]:
                if session.knobs.wants(knob):
                    session.knobs.inapplicable(knob, "no tf.data dataset feeds training", sites=0)
            return
        if session.facts.as_written.get("batch_size", 0) is None:
            del session.facts.as_written["batch_size"]
            if self._usual_size() is not None and not session.knobs.wants("batch_size"):
                session.facts.as_written["batch_size"] = self._usual_size()
        self.filling.observe()
        if self.plans.plan is not None:
            session.facts.input_plan = tuple(self.plans.plan)
        for knob in KNOBS:
            if session.knobs.wants(knob):
                self._report(knob, session.request.config[knob])

    def _usual_size(self) -> int | None:
        return max(self.sizes, key=lambda size: self.sizes[size]) if self.sizes else None

    def _report(self, knob: str, requested: Value) -> None:
        applied = self.applied.get(knob, Applied())
        if applied.refused or not applied.sites:
            reason = applied.refused or "no dataset of the training was changed"
            finding = Finding(Evidence.NOT_APPLICABLE, reason, of_value=applied.of_value)
        elif knob == "batch_size":
            finding = self._judge_size(requested)
        elif not applied.changed:
            finding = at_work_anyway(AS_WRITTEN)
        elif knob == "deterministic":
            finding = plans.judge_order(self._feeding(), requested, self.plans.plan)
        elif knob == "cache" and max(self._caches.values(), default=0) > 2:
            reason = "the script makes its dataset anew each time: no cache lasts"
            finding = Finding(Evidence.CONTRADICTED, reason)
        elif self.plans.plan is None:
            finding = Finding(Evidence.UNVERIFIABLE, self.plans.why_none)
        else:
            finding = plans.judge(knob, requested, self.plans.plan, self.session.request.knowledge.input_plan)
        if knob == "cache" and requested and finding.evidence is Evidence.VERIFIED:
            finding = replace(finding, reason=self.filling.told())
        self.session.knobs.report(knob, replace(finding, sites=applied.sites, changed=applied.changed))

    def _judge_size(self, requested: Value) -> Finding:
        usual = self._usual_size()
        if usual is None:
            return Finding(Evidence.UNVERIFIABLE, "no batch was counted")
        if usual == requested:
            return Finding(Evidence.VERIFIED, "", usual)
        return Finding(Evidence.CONTRADICTED, f"most batches have {usual} samples", usual)
