"""Switches knobs between two calls of a training function of Keras', and back to the script's own settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..participants import Switcher
from ..records import Value
from ..session import Session
from ..tensorflow.graphs import is_compiled, products, xla_threads
from ..tensorflow.mixed_precision import KNOB as REWRITES
from ..tensorflow.strategies import DEFAULT
from .by_turns import Made
from .fit import FitWatch
from .fit_call import FitCall
from .formats import Formats
from .freezing import what_froze
from .kept import KeptVariables, changed_by
from .model import makes_own_function
from .own_pipelines import KNOBS as PIPELINE_KNOBS
from .own_pipelines import OwnPipelines
from .settings import MODEL_KNOBS
from .types import TrainFunction
from .watches import Watches

MOST_KEPT_BYTES = 2 << 30
"""What a step changes is kept in the host's memory: no more than so much."""
BF16 = "bfloat16"


@dataclass
class Prepared:
    """A config's own training function: ``stepping`` is what Keras calls. ``traces``: of its step when it was ready.

    ``doubt``: what of the config the function didn't take up.
    """

    made: Made
    stepping: TrainFunction | None
    traces: int = 0
    doubt: str = ""


class KerasSwitcher(Switcher):
    """Each config has a training function of its own, made of the one model; the next call is another one's.

    Before its first turn a config's function runs on a kept batch, so that it is traced and compiled; what that
    changes is put back. ``on_put_back`` is told that metrics hold earlier figures again.
    """

    def __init__(self, watches: Watches, on_put_back: Callable[[], None] = lambda: None) -> None:
        self._watches = watches
        self._session: Session = watches.session
        self._on_put_back = on_put_back
        self._restore: dict[str, Callable[[], None]] = {}
        self._prepared: dict[tuple[tuple[str, Value], ...], Prepared] = {}
        self._weights: KeptVariables | None = None
        self._model: Any = None
        self._formats: Any = None
        self._written = Prepared(Made(None, None), None)
        self._now: Prepared | None = None
        self._on: dict[str, Value] = {}
        self._pipelines = OwnPipelines(watches)
        self._shapes_before = 0
        """For which XLA had compiled what trains, before the turn under way."""

    # what can be switched

    def obstacle(self) -> str:
        """As ``Switcher.obstacle``."""
        fits, call, strategies = self._watches.fits, self._call, self._watches.strategies
        if fits is None or call is None or not fits.steps.calls:
            return "no Model.fit of it is seen to train"
        if self._watches.backend != "tensorflow" or fits.steps.by_turns is None:
            return f"Keras computes with {self._watches.backend} here"
        if makes_own_function(call.model):
            return "its model makes its training function itself"
        if strategies is None or strategies.in_use(call.model) != DEFAULT:
            return "it trains under a strategy"
        if self._session.counts_its_steps:
            return "it reports its steps itself: where they end nothing may be switched"
        if fits.steps.by_turns.batch is None:
            return "no batch of it can be kept, on which a config could be compiled"
        kept = KeptVariables(changed_by(call.model, fits.steps.graphs())).nbytes
        if kept > MOST_KEPT_BYTES:
            return f"what its steps change takes {kept / 2**30:.1f} GiB, too much to be kept"
        return ""

    def refusal(self, config: Mapping[str, Value]) -> str:
        """As ``Switcher.refusal``."""
        known = (*MODEL_KNOBS, "precision", REWRITES, *PIPELINE_KNOBS)
        unknown = sorted(knob for knob in config if knob not in known or not self._session.knobs.is_free(knob))
        if unknown:
            return f"can't be switched to: {', '.join(unknown)} can't be turned while it trains"
        why = self._why_not(config)
        return f"can't be switched to: {why}" if why else ""

    def _why_not(self, config: Mapping[str, Value]) -> str:
        call, by_turns = self._call, self._fits.steps.by_turns
        if call is None or by_turns is None:
            return "nothing trains"
        if "precision" in config:
            why = Formats(self._watches.policy, call.model).refusal(config["precision"])
            if why:
                return why
        if "steps_per_execution" in config and not by_turns.enumerates:
            return "this version of Keras goes through an epoch otherwise"
        if "steps_per_execution" in config:
            wanted = int(config["steps_per_execution"])
            why = call.why_not_several_steps(wanted, call.epoch_steps, self._fits.backend)
            if why:
                return why
        return self._pipelines.refusal(config)

    # switching

    def begin(self) -> None:
        """As ``Switcher.begin``."""
        fits, call = self._fits, self._call
        assert call is not None
        self._model = model = call.model
        self._formats = Formats(self._watches.policy, model)
        self._weights = KeptVariables(changed_by(model, fits.steps.graphs()))
        self._weights.keep()
        self._written = Prepared(fits.steps.made, model.train_function)
        own: dict[str, Value] = {knob: getattr(model, knob) for knob in MODEL_KNOBS}
        self._restore = {
            **{knob: lambda knob=knob: setattr(model, knob, own[knob]) for knob in MODEL_KNOBS},  # type: ignore[misc]
            "precision": self._formats.restore,
        }
        mixed = self._watches.mixed_precision
        if mixed is not None:
            rewrites = mixed.is_on
            self._restore[REWRITES] = lambda: mixed.set(rewrites)
        fits.as_written = self._as_written
        rotation = self._session.request.rotation
        self._pipelines.begin([config for config in rotation if not self.refusal(config)])

    def to(self, config: Mapping[str, Value]) -> None:
        """As ``Switcher.to``. A config's first time takes as long as its compilation does."""
        self._pipelines.hold()
        self._unset()
        self._written.traces = _traces(self._written.made)  # those of its own turns are nobody else's
        self._take(self._written)
        call = self._call
        if config and (call is None or call.model is not self._model or self._is_another):
            raise RuntimeError("another model trains meanwhile, or it was compiled anew")
        of_model = {knob: value for knob, value in config.items() if knob not in PIPELINE_KNOBS}
        try:
            if of_model:
                self._take(self._function_of(of_model))
            self._pipelines.to(config)
        except BaseException:
            self._unset()
            self._take(self._written)
            raise
        self._shapes_before = self._shapes

    def disturbed(self, config: Mapping[str, Value]) -> str:
        """As ``Switcher.disturbed``: a batch of another size may come after the config was prepared."""
        count = self._shapes - self._shapes_before
        return f"XLA compiled its step for {count} other shape{'s' * (count > 1)} of batches" if count else ""

    @property
    def _shapes(self) -> int:
        """For which XLA has compiled what trains."""
        return self._fits.steps.graph.shapes.number if self._fits.steps.graph is not None else 0

    def _function_of(self, config: Mapping[str, Value]) -> Prepared:
        """Its training function, with its settings on."""
        key = tuple(sorted(config.items()))
        self._set(config)
        if key not in self._prepared:
            self._prepared[key] = self._prepare(config)
        return self._prepared[key]

    def loads(self, config: Mapping[str, Value]) -> bool:
        """As ``Switcher.loads``."""
        return any(knob in config for knob in PIPELINE_KNOBS)

    def end(self) -> None:
        """As ``Switcher.end``."""
        self._pipelines.end()

    def _take(self, prepared: Prepared) -> None:
        """The next call is of this function. A model that was compiled anew meanwhile keeps what it makes."""
        self._now = prepared
        if not self._is_another:
            self._model.train_function = prepared.stepping

    @property
    def _is_another(self) -> bool:
        """Whether the script has compiled its model since: what it made and set by that is its own."""
        known = (self._written, *self._prepared.values())
        return not any(self._model.train_function is each.stepping for each in known)

    def put_back_weights(self) -> None:
        """As ``Switcher.put_back_weights``."""
        if self._weights is not None:
            self._weights.put_back()
            self._on_put_back()

    def doubt(self, config: Mapping[str, Value]) -> str:
        """As ``Switcher.doubt``."""
        now = self._now
        if now is None:
            return ""
        if self._model.train_function is not now.stepping:
            return "the model was compiled anew in its turn"
        if _traces(now.made) != now.traces:
            return "its step was traced anew in its turn, by batches of another shape"
        return now.doubt or self._pipelines.doubt(config)

    # a config's settings, and its function

    def _set(self, config: Mapping[str, Value]) -> None:
        for knob, value in config.items():
            self._on[knob] = value  # before it is done: a part of it may be, where it fails
            if knob == "precision":
                self._formats.choose(value)
            elif knob == REWRITES and self._watches.mixed_precision is not None:
                self._watches.mixed_precision.set(bool(value))
            elif knob in MODEL_KNOBS:
                setattr(self._model, knob, value)
                if getattr(self._model, knob) != value:
                    raise RuntimeError(f"the model's own {knob} is {getattr(self._model, knob)}")

    def _unset(self) -> None:
        for knob in self._on:
            if knob in self._restore and (knob not in MODEL_KNOBS or not self._is_another):
                self._restore[knob]()
        self._on = {}

    @contextmanager
    def _as_written(self) -> Iterator[None]:
        """What validates is traced once: never in the format or the calls of the config whose turn it is."""
        config = self._on
        self._unset()
        try:
            yield
        finally:
            if config and not self._is_another:
                self._set(config)

    def _prepare(self, config: Mapping[str, Value]) -> Prepared:
        """Makes its function and runs it. What that changed is put back, whatever comes of it."""
        model, steps = self._model, self._fits.steps
        changed = KeptVariables([*changed_by(model, steps.graphs()), *self._counters()])
        changed.keep()
        now = model.train_function
        model.train_function = None
        try:
            model.make_train_function()
            prepared = Prepared(steps.made, model.train_function)
            prepared.doubt = self._rehearse(prepared.made, config)
            prepared.traces = _traces(prepared.made)
            return prepared
        finally:
            changed.put_back()
            model.train_function, steps.made = now, self._written.made

    def _rehearse(self, made: Made, config: Mapping[str, Value]) -> str:
        """What of the config the function doesn't take up, by what ran."""
        steps, call, mixed = self._fits.steps, self._call, self._watches.mixed_precision
        assert steps.by_turns is not None and steps.graph is not None and made.function is not None and call is not None
        by_turns, function, loops = steps.by_turns, made.function, self._watches.loops
        sizes, before = {steps.graph.largest}, steps.graph.samples
        if call.fed_by == "arrays" and call.dataset_len:
            sizes.add(call.dataset_len % int(call.written["batch_size"]))

        per_call = int(config.get("steps_per_execution", call.written["steps_per_execution"]))

        def run() -> int:
            return by_turns.rehearse(function, per_call, sizes)

        rewritten: Mapping[str, int] = {}
        if loops is not None:
            loops.functions.tracing.call_begins()
        try:
            if REWRITES in config and mixed is not None:
                given, rewritten = mixed.runs_of(run)
            else:
                given = run()
        finally:
            if loops is not None:
                loops.functions.tracing.call_ended()
        trained = steps.graph.samples - before
        if given and trained != given:
            return f"its step trained on {trained} samples, where it was given {given}"
        return self._unseen(made, config, rewritten)

    def _unseen(self, made: Made, config: Mapping[str, Value], rewritten: Mapping[str, int]) -> str:
        step, tf = made.traced, self._watches.tf
        graphs = list(step._list_all_concrete_functions()) if step is not None else []
        wanted = config.get("precision")
        if wanted is not None and tf is not None:
            counts = {dtype: count for graph in graphs for dtype, count in products(tf, graph).items()}
            seen = max(counts, key=lambda dtype: counts[dtype], default="")
            if seen and seen != {"fp32": "float32", "bf16": BF16}.get(str(wanted)):
                return f"most products of its step are in {seen}"
        if REWRITES in config and bool(rewritten.get(BF16)) != bool(config[REWRITES]):
            return f"its graphs hold {rewritten.get(BF16, 0)} products in bf16"
        if config.get("run_eagerly") is False and step is not None:
            return what_froze(self._model, step)
        if "jit_compile" in config:
            compiled = any(map(is_compiled, graphs))
            compiled = compiled and (not self._session.device.xla_runs_in_threads or xla_threads() > 0)
            if compiled != config["jit_compile"]:
                return "no code of XLA's has run" if config["jit_compile"] else "its step is compiled all the same"
        return ""

    def _counters(self) -> Iterator[Any]:
        graph = self._fits.steps.graph
        if graph is not None:
            yield from graph.variables

    @property
    def _fits(self) -> FitWatch:
        assert self._watches.fits is not None
        return self._watches.fits

    @property
    def _call(self) -> FitCall | None:
        return self._watches.fits.call if self._watches.fits is not None else None


def _traces(made: Made) -> int:
    return made.traced.experimental_get_tracing_count() if made.traced is not None else 0
