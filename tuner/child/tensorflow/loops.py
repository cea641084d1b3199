"""TensorFlow loops that a script writes itself: where a step ends, eager and traced, what it trains on, its loss."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..call_sites import generated_lines, line_stack
from ..evidence import Finding
from ..feeds import FED
from ..leader import Turns
from ..own_batches import OwnBatches, Spot
from ..patches import patch
from ..records import Evidence, LoaderUse
from ..session import Session
from . import FRAMEWORK
from .apart import ApartWatch
from .data.watch import KNOBS as DATA_KNOBS
from .data.watch import DatasetWatch
from .entries import Given, TracedFunction
from .evidence import observe_compilation, unfed, why_unsized
from .functions import FunctionWatch, not_converted
from .graphs import products
from .iteration import IterationWatch
from .literals import literal_rows
from .losses import OtherLosses
from .sessions import note_graphs
from .sizes import add, sizes_of
from .types import Arguments, Optimizer, Result, Structure, Tensor
from .weights import TapeWeights

RETRACE_SHARE = 0.05
MIN_RETRACES = 5


class LoopWatch:
    """Patches tapes, functions, optimizers and datasets; while ``fitting``, Keras counts and this stands aside.

    ``begins``, ``stepped``: told of an optimizer before its step, and afterwards how often it has stepped.
    ``rows_given``: samples of the batch that the script has given to the step that runs now; 0 where that isn't known.
    ``acting``: whether what a model is asked now is part of the training.
    """

    def __init__(self, session: Session, tf: ModuleType, datasets: DatasetWatch | None) -> None:
        self.session = session
        self.tf = tf
        self.fitting = False
        self.trained = False
        self.rows_given = 0
        self.acting = False
        self.begins: Callable[[Optimizer], object] = lambda optimizer: None
        self.stepped: Callable[[Optimizer, int], object] = lambda optimizer, count: None
        self.functions = FunctionWatch(session, tf, self._stands_aside, self._function_ended, self._prepare)
        self.iterations = IterationWatch(session, tf, datasets, self.functions, self._leaves_data_alone)
        self._apart = ApartWatch(session, tf, self.iterations.sources)
        self._turns = Turns()
        self._leading: object = None
        self._functions_counted: Counter[str] = Counter()
        self._applied: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._applying = False
        self._taking: set[int] = set()
        self._any_applied = self._awaits_apply = False
        self._eager_steps = self._fetched_in_graphs = 0
        self._losses, self._loss_sites = list[Tensor](), list[str]()
        self.other_losses = OtherLosses(session, tf)
        self.weights = TapeWeights(session, tf)
        self._loss: float | None = None
        self._told = False
        self.own_batches = OwnBatches(session)
        self._sizes: dict[Spot, int] = {}
        self._passing: object = None
        self.gradient_taken: Callable[[], None] = lambda: None
        """Called after each gradient of variables is taken, or traced."""

    def install(self) -> None:
        """Patches TensorFlow. Nothing here touches a device: the script may still configure them."""
        wanted = self.session.knobs.wants("jit_compile") or bool(
            self.iterations.sources.known and self.iterations.datasets is not None
        )
        if self.session.applied is not None and self.session.request.config:
            note_graphs(self.tf, self.session.applied)
        if not (self.session.measuring or wanted):
            if self.session.request.config:
                patch(self.tf.GradientTape, "gradient", self._noting)
            return
        patch(self.tf.GradientTape, "gradient", self._gradient)
        self.functions.install()
        self.iterations.install()

    def note_keras(self, keras: ModuleType) -> None:
        """Patches the optimizers of Keras, once it is imported."""
        if not self.session.measuring:
            return
        owner = next(cls for cls in reversed(keras.optimizers.Optimizer.__mro__) if "apply" in cls.__dict__)
        patch(owner, "apply", self._apply)
        if "_assert_input_compatibility" in vars(keras.layers.Layer):
            patch(keras.layers.Layer, "_assert_input_compatibility", self._layer_given)

    def _stands_aside(self) -> bool:
        session = self.session
        return (
            self.fitting or not session.here or threading.get_ident() != session.thread
            or not session.may_be_of(FRAMEWORK) or self.functions.is_retracing
        )  # fmt: skip

    def _leaves_data_alone(self) -> bool:
        here = self.session.here and threading.get_ident() == self.session.thread and self.tf.executing_eagerly()
        return not here if self.session.trained_by in FED else self._stands_aside()  # it may feed a loop of JAX's

    # gradients

    def _noting(self, original: Callable[..., Result]) -> Callable[..., Result]:
        """Says that something is trained, and does nothing else: also where it is traced only."""

        def gradient(tape: object, target: object, sources: Structure, *args: object, **kwargs: object) -> Result:
            result = original(tape, target, sources, *args, **kwargs)
            if self.session.applied is not None and self._trains(sources):
                self.session.applied.trains()
                self.gradient_taken()
            return result

        return not_converted(gradient)

    def _gradient(self, original: Callable[..., Result]) -> Callable[..., Result]:
        original = original if self.session.measuring else self._noting(original)

        def gradient(tape: object, target: object, sources: Structure, *args: object, **kwargs: object) -> Result:
            thread = threading.get_ident()
            if thread in self._taking:  # part of another one: what is computed anew for it (tf.recompute_grad)
                return original(tape, target, sources, *args, **kwargs)
            self._taking.add(thread)
            try:
                result = original(tape, target, sources, *args, **kwargs)
            finally:
                self._taking.discard(thread)
            if not self.session.here or not self._trains(sources):
                return result
            if self.session.measuring:
                self.gradient_taken()
            if self.session.may_be_of(FRAMEWORK) and not self.functions.is_retracing:
                self.weights.gradient_taken(sources)
            if not self.fitting:
                if not self.tf.executing_eagerly():
                    stack = line_stack()
                    site = self.other_losses.numbered(stack)
                    self.functions.gradient_traced(target, site, (stack, *generated_lines()))
                    if not self.functions.is_retracing:
                        self.other_losses.traced(self.functions.current, target, site)
                elif self.functions.current is None and not self._stands_aside():
                    self.weights.eager_step_begins(sources)
                    self._eager_gradient(target)
            return result

        return not_converted(gradient)

    def _trains(self, sources: Structure) -> bool:
        """Whether gradients of variables are taken; those of an image alone show what a trained model sees."""
        flat = self.tf.nest.flatten(sources)
        return any(hasattr(source, "assign") for source in flat)

    def _eager_gradient(self, target: object) -> None:
        self.session.check_stop()
        if self.session.applied is not None:
            self.session.applied.stepped()
        if not self.session.measuring:
            return
        self.iterations.gradient_ran()
        self._apart.gradient_ran()
        site = line_stack()
        self._passed(site)
        if site not in self._loss_sites and len(self._loss_sites) < 16:
            self._loss_sites.append(site)
        if site == self._loss_sites[0] and isinstance(target, self.tf.Tensor):
            # In a screen every step is a block, and its parts belong together; elsewhere the newest one will do.
            self._losses = [*self._losses, target] if self.session.request.seed is not None else [target]
        elif site != self._loss_sites[0]:
            self.other_losses.seen(target, site)
        if self._any_applied:
            return
        if self._awaits_apply:
            self._stepped(site, 1)
        self._awaits_apply = True

    def _apply(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def apply(optimizer: Optimizer, *args: object, **kwargs: object) -> Result:
            if self.fitting or self._applying or not self.session.here:
                return original(optimizer, *args, **kwargs)
            if not self.tf.executing_eagerly():
                self.functions.apply_traced(optimizer)
                if self.functions.current is not None and not self.functions.is_retracing:
                    with self.tf.init_scope():  # the step that is traced is the next one, or one of the next
                        self.begins(optimizer)
                return original(optimizer, *args, **kwargs)
            if self.functions.current is not None or self._stands_aside():
                return original(optimizer, *args, **kwargs)
            self._applying = True
            self.begins(optimizer)
            try:
                result = original(optimizer, *args, **kwargs)
            finally:
                self._applying = False
            self._eager_apply(optimizer)
            return result

        return not_converted(apply)

    def _eager_apply(self, optimizer: Optimizer) -> None:
        self._any_applied = True
        applied = self._applied[optimizer] = self._applied.get(optimizer, 0) + 1
        accumulated = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        self._eager_steps += 1
        steps = int(applied % accumulated == 0)
        self.functions.progress.told_elsewhere(optimizer, steps)
        self.stepped(optimizer, steps)
        self._stepped(optimizer, steps)

    # steps

    def _prepare(self, entry: TracedFunction, given: Given) -> Arguments:
        """A function's arguments with adapted datasets; says to the clock what the call is part of."""
        adapted = self.iterations.passed(given[0], entry.sources)
        if entry.optimizer is not None:
            self.begins(entry.optimizer)
        if self.session.measuring:
            if not (entry.takes_gradients or self.acting):
                self._apart.call_begins(entry, given, trained=self.trained)
            elif self.trained:
                self.session.clock.fetch_begins()
        return adapted

    def _function_ended(self, entry: TracedFunction, count: float, given: Given) -> None:
        self._apart.it_trains(entry)
        self.weights.stepped()
        if not entry.takes_gradients:  # another function, or a tape, has taken those that are applied here
            if entry.optimizer is not None:
                if not self._any_applied:  # gradients counted until now
                    self._any_applied, self._functions_counted = True, Counter()
                self.stepped(entry.optimizer, int(count))
                self._stepped(entry.key, int(count), entry.name)
            return
        self._apart.gradient_ran()
        self.iterations.gradient_ran(in_graph=entry.fetches)
        if entry.optimizer is not None:
            self.stepped(entry.optimizer, int(count))
        if self._makes_its_batches and self.own_batches.is_wanted:
            self._sizes = sizes_of(self.tf, entry.name, given)
        self._passed(entry.key, max(1, int(count)))
        if entry.sources and not entry.calls:
            self.iterations.meet_training()
        self._fetched_in_graphs += entry.fetches
        if entry.steps_itself or (not self._any_applied and entry.calls):
            self._stepped(entry.key, int(count), entry.name)

    # batches that no dataset gives

    @property
    def _makes_its_batches(self) -> bool:
        """Whether nothing else counts what it trains on, as far as is known."""
        sources = self.iterations.sources
        return sources.primary is None and not sources.feeds_itself and not self.rows_given

    def _layer_given(self, original: Callable[..., Result]) -> Callable[..., Result]:
        """Patches what each layer's call begins with, and which calls nothing of the script's. Eager calls only."""

        def _assert_input_compatibility(layer: object, given: Structure, *args: object, **kwargs: object) -> Result:
            if (
                self.functions.current is None and self._makes_its_batches and self.own_batches.is_wanted
                and not self._stands_aside() and self.tf.executing_eagerly()
            ):  # fmt: skip
                add(self._sizes, sizes_of(self.tf, type(layer).__name__, given))
            return original(layer, given, *args, **kwargs)

        return not_converted(_assert_input_compatibility)

    def _passed(self, key: object, times: int = 1) -> None:
        """A gradient was taken at one place, or by one function; of several in a step the first one's count."""
        sizes, self._sizes = self._sizes, {}
        if self._makes_its_batches and self._passing in (None, key):
            self._passing = key
            self.own_batches.passed(sizes, times)

    def _stepped(self, key: Any, steps: int, function: str = "") -> None:
        """Steps of one optimizer, place or function; of several that step on the same batch the first one's count."""
        primary = self.iterations.sources.primary
        batches = self._fetched_in_graphs + (primary.fetches if primary is not None else 0)
        count = self._turns.counted(key, steps, batches)
        if count is None:
            return
        self.trained = True
        if key != self._leading:
            self._leading, self._passing = key, self._passing if self._leading is None else None
        if not count:
            return
        if function:
            self._functions_counted[function] += count
        if self.rows_given and self.iterations.sources.primary is None:
            self._told = True
            self.session.clock.add_samples(self.rows_given * count, 0.0)
        self.own_batches.step_ends()
        self.session.step(FRAMEWORK, count)

    def activity(self) -> int:
        """Changes with every trace of a training function, all that XLA compiles, every change of what counts."""
        functions = self.functions
        changes = self.iterations.sources.changes_of_primary + self.own_batches.changes
        return sum(functions.traces.values()) + functions.compiled + changes

    def synchronize(self) -> None:
        """Takes what graphs have counted; waits for the device."""
        samples, loss, largest = self.functions.settle()
        if samples:
            self.session.clock.settle(samples, 0.0)
            self.iterations.saw_in_graph(largest)
        if loss is not None:
            self._loss = loss
        if self._losses:
            self._loss = sum(float(self.tf.reduce_mean(part)) for part in self._losses) / len(self._losses)
            self._losses = []

    def take_loss(self) -> float | None:
        """The newest training loss; None where there is none that can be read."""
        loss, self._loss = self._loss, None
        return loss

    # what was seen

    @property
    def samples_seen(self) -> bool:
        """Whether the samples that trained could be counted."""
        if self.iterations.why_uncounted and not (self._told or self.own_batches.counts):
            return False
        primary = self.iterations.sources.primary
        counted = any(entry.fetched.samples for entry in self.functions.training)
        return counted or self._told or self.own_batches.counts or (primary is not None and primary.fetches > 1)

    @property
    def out_of_reach(self) -> str:
        """Why the training data can't be adapted; "" where they can."""
        if any(entry.captures for entry in self.functions.training):
            return "a tf.function iterates over a dataset that it isn't given as an argument"
        training = self.iterations.training()
        if any(source.made_by == "DistributedDatasetsFromFunction" for source in training):
            return "a function of the script's makes the data of each replica"
        return "" if training else unfed(self.functions)

    def observe(self) -> None:
        """Facts, what the script wrote and evidence, where a loop of the script's own trained."""
        if not self.trained:
            return
        session, functions = self.session, self.functions
        counted: Counter[str] = Counter()
        for entry in list(functions.training):
            for graph in entry.graphs[-1:]:
                counted.update(products(self.tf, graph))
        retraces, calls = functions.retraces()
        facts = session.facts
        facts.loop = "eager" if not functions.training or self._eager_steps else "function"
        facts.unit = "samples" if self.samples_seen else "steps"
        facts.training_loaders = [source.key for source in self.iterations.training()]
        facts.loaders = [LoaderUse(source.key, source.fetches) for source in self.iterations.sources]
        facts.products, facts.retraces = dict(counted), retraces
        if not self.iterations.training():
            facts.wait_is_unseen = True
        elif self.iterations.sources.wait_is_hidden:
            facts.hide_wait("another thread fetches it from the dataset")
        if retraces >= MIN_RETRACES and retraces > RETRACE_SHARE * calls:
            session.facts.remark(
                f"the training step was traced anew {retraces} times in {calls} steps: pass tensors, not Python numbers"
            )
        if len(self._functions_counted) > 1:
            names = ", ".join(self._functions_counted)
            session.facts.remark(f"{names} train one after another: the steps of each count")
        self._apart.remark()
        self._observe_batches()
        observe_compilation(session, functions)

    def _observe_batches(self) -> None:
        """What the loop itself adds to what is known of its data; the watch on datasets reports the knobs."""
        session, size = self.session, self.iterations.size if self.iterations.size_is_a_batchs else 0
        if not session.request.config:
            session.facts.left_out.update(dict.fromkeys(DATA_KNOBS, why) if (why := self.out_of_reach) else {})
            reason = why_unsized(why) or (literal_rows(self.functions, size, retrace=True) if size else "")
            if reason:
                session.facts.left_out["batch_size"] = reason
            elif size:
                session.facts.as_written.setdefault("batch_size", size)
                session.facts.keep_sizes([s.usual_size for s in self.iterations.sources.training() if s.fetches], size)
        if self._makes_its_batches:
            self.own_batches.observe()
        if not self.samples_seen and (why := self.iterations.why_uncounted or self.own_batches.untold):
            session.facts.remark(f"steps are counted, and not samples: {why}")
        written = session.request.knowledge.as_written.get("batch_size")
        if session.knobs.wants("batch_size") and written and written != session.request.config["batch_size"]:
            reason = literal_rows(self.functions, int(written), retrace=False)
            if reason:
                session.knobs.report("batch_size", Finding(Evidence.CONTRADICTED, reason, size))
