"""What the watches on Keras and TensorFlow saw, as facts and as evidence of each knob."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator

from .. import allocator
from ..evidence import Finding, SetBy, compare, number_format
from ..records import Evidence
from ..session import Session
from ..tensorflow import FRAMEWORK, elsewhere
from ..tensorflow.evidence import BIND
from ..tensorflow.graphs import is_compiled, products, xla_threads
from ..tensorflow.strategies import DEFAULT, NO_STRATEGY, ONE_DEVICE
from ..torch import compiler
from . import threads
from .fit_call import BATCH_REASONS, NOT_ON_TORCH, FitCall
from .freezing import DRAWS, own_kinds, what_froze, what_is_set
from .model import POLICIES, accumulation_of, has_batch_norm, inner_optimizer
from .on_batch import OWN_BATCHES
from .reductions import has_own_loss, reduction_of, why_no_parts
from .split import OWN_LOSS, OWN_PARTS
from .steps import StepWatch
from .watches import Watches

PRECISION_OF = {policy: word for word, policy in POLICIES.items()} | {"bfloat16": "bf16", "float16": "fp16"}
NO_PRODUCTS = "no product of matrices was seen in the training step"
EAGER_PRODUCTS = "what a step computes in isn't seen where Python runs every operation of it"
SEEN_TO_WAIT = (DEFAULT, ONE_DEVICE)
"""Kinds of strategies whose iterators are TensorFlow's plain ones: the time that a fetch takes is the wait."""
OWN_RATE = "the script sets the rate while it trains"
UNREAD_RATE = "the script knows its batch size, and its rate can't be read: it may follow the batch by itself"
UNREAD = "the optimizer's count of its steps can't be read"
GIVEN_UP = "PyTorch compiled a part of the step anew as often as it is willing to, and runs that as it is written"
UNSCALED = "nothing in the script's own training step scales its loss, which fp16 needs"


class Observation:
    """Made once, when the window or the script has ended."""

    def __init__(self, session: Session, watches: Watches) -> None:
        self.session = session
        self.watches = watches
        fits = watches.fits
        # A model that was never fit may still have trained in a loop of the script's own.
        self.call: FitCall | None = fits.call if fits is not None and fits.steps.calls else None
        self.steps: StepWatch | None = fits.steps if fits is not None and self.call is not None else None

    def observe(self) -> None:
        """Facts and evidence. What goes wrong here is noted: the figures stand all the same."""
        self.session.knobs.look(self._looks(), self.session.note)

    def _looks(self) -> Iterator[Callable[[], None]]:
        """Each by itself: what goes wrong in one costs no other."""
        config, optimizers, mixed = self.session.request.config, self.watches.optimizers, self.watches.mixed_precision
        yield from (self._script, self._data, self._device, self._device_evidence)
        yield from (lambda: allocator.report(self.session.knobs), lambda: threads.report(self.session, self.watches))
        if mixed is not None:
            yield from (mixed.report, lambda: mixed.written(self.watches.backend, self._products()))
        if "precision" in config:
            yield self._precision_evidence
        if "lr_scale" in config:
            yield self._rate_evidence
        yield self._step_evidence
        if optimizers is not None and not optimizers.rates.dropped:
            yield self.watches.trajectory.report

    def _script(self) -> None:
        session, watches, facts = self.session, self.watches, self.session.facts
        library = watches.keras or watches.tf
        facts.framework, facts.backend = FRAMEWORK, watches.backend
        facts.framework_version = str(library.__version__) if library is not None else ""
        facts.unit = "samples" if session.clock.total_samples else "steps"
        facts.emulated_precisions = session.device.emulated_precisions()
        facts.precisions = [p for p in session.device.tensorflow_precisions() if p != "fp16" or self._scales_its_loss()]
        threads.written(session, watches)
        facts.as_written["allocator"] = allocator.in_use() or None
        self._policy()
        self._strategy()
        if watches.keras is not None:
            watches.trajectory.observe()
        if self.call is not None and self.steps is not None:
            self._fit(self.call, self.steps)
            return
        facts.left_out["grad_accumulation"] = OWN_BATCHES if self._by_batch else OWN_LOSS
        if watches.optimizers is not None and watches.optimizers.created:
            facts.as_written.update(grad_accumulation=1, lr_scale=1.0)
            facts.optimizers, facts.loss_reduction = watches.optimizers.created, "unknown"
            if self._by_batch:
                self._train_on_batch()

    @property
    def _by_batch(self) -> bool:
        """Whether the script trains by ``train_on_batch``."""
        fits = self.watches.fits
        return self.call is None and fits is not None and fits.on_batch.called

    def _train_on_batch(self) -> None:
        facts, loops = self.session.facts, self.watches.loops
        if self.watches.backend != "tensorflow":
            facts.left_out["jit_compile"] = OWN_BATCHES
        if loops is None or loops.iterations.sources.primary is None:
            facts.left_out["batch_size"] = f"{OWN_BATCHES}: where {BIND}"
            facts.hide_wait(OWN_BATCHES)

    def _scales_its_loss(self) -> bool:
        """Whether what trains scales its loss where an optimizer undoes that: Keras' own step does, others may."""
        optimizers = self.watches.optimizers
        usual = self._by_batch if self.call is None else not self.call.custom_step
        return usual or (optimizers is not None and optimizers.scales_losses)

    def _data(self) -> None:
        """The datasets first: a loop may know better what reached its step."""
        datasets, loops, call = self.watches.datasets, self.watches.loops, self.call
        if call is None or self.steps is None:
            if loops is not None:
                loops.iterations.meet_training()
            if datasets is not None:
                datasets.observe()
            if loops is not None:
                loops.observe()
            if loops is not None and self.session.is_as_written:
                self.session.facts.batch_waits = loops.iterations.sources.told_waits()
        elif call.fed_by == "dataset" and datasets is not None:
            if self._largest_part(self.steps):
                datasets.saw_batch(self._largest_part(self.steps))
            datasets.observe()

    def _largest_part(self, steps: StepWatch) -> int:
        """Rows in the largest forward pass; 0 where none was seen."""
        fits = self.watches.fits
        parts = fits.split.seen if fits is not None else 0
        return -(-steps.largest_batch // max(1, parts))

    def _device(self) -> None:
        """That of the library which computes: TensorFlow may be here for its datasets alone."""
        backend, device, session = self.watches.backend, self.session.device, self.session
        if (library := sys.modules.get(backend)) is None:
            return
        if backend == "torch":
            missing = device.torch_missing(library)
        else:
            on = self.steps.newest.platforms if self.steps is not None else ()
            missing = device.jax_missing(library, on) if backend == "jax" else device.tensorflow_missing(library)
        if backend == "tensorflow" and self.watches.strategies is not None:
            missing = missing or self.watches.strategies.unused(self.call is not None)
        if missing:
            session.fail("unsupported", missing)
            return
        if backend == "torch":
            memory = device.torch_memory(library, session.request.used_device_bytes)
        elif backend == "jax":
            memory = device.jax_memory(library)
        else:
            memory, growth = device.tensorflow_memory(library), device.tensorflow_growth(library)
            if growth is not None:
                session.facts.as_written["memory_growth"] = growth
        if memory is not None:
            session.recorder.emit(memory)

    def _policy(self) -> None:
        policy = self.watches.policy
        self.session.facts.as_written["precision"] = PRECISION_OF.get(policy.chosen_by_script, "fp32")
        if policy.chosen_by_script:
            self.session.facts.left_out["precision"] = f"the script chooses the policy {policy.chosen_by_script} itself"
        elif not policy.asked:
            legacy = " 3 computes in the training step, and those of legacy Keras (tf_keras) are left alone"
            told = legacy if "tf_keras" in sys.modules else " computes in the training step"
            self.session.facts.left_out["precision"] = f"no layer of Keras{told}"

    def _strategy(self) -> None:
        strategies, facts = self.watches.strategies, self.session.facts
        if strategies is None or facts.backend != "tensorflow":
            facts.left_out["strategy"] = elsewhere(facts.backend)
            return
        facts.devices, (facts.as_written["strategy"], reason) = strategies.replicas(), strategies.written()
        facts.left_out.update(strategies.left_out())
        if reason or (self.call is None and facts.as_written["strategy"] == DEFAULT):
            facts.left_out["strategy"] = reason or NO_STRATEGY

    # fit

    def _fit(self, call: FitCall, steps: StepWatch) -> None:
        facts, model = self.session.facts, call.model
        facts.trainer, facts.fed_by, facts.training_loaders = "keras", call.fed_by, ["fit"]
        facts.optimizers, facts.batch_norm = [type(inner_optimizer(model)).__name__], has_batch_norm(model)
        checked = self.watches.backend == "tensorflow"  # a screen holds the gradient of the parts to the whole there
        facts.loss_reduction = "unknown" if call.custom_step else reduction_of(model, own_functions=checked)
        facts.retraces, facts.dataset_len = max(0, steps.traces - 1), call.dataset_len
        facts.acts_by_batch, facts.counted_steps = call.acts_by_batch, list(call.counted_steps)
        facts.gradient_scaler = steps.scaling.counts(steps.batches_trained)
        facts.as_written.update(call.written)
        by_script = self.watches.optimizers.accumulated_by_script if self.watches.optimizers is not None else 0
        facts.as_written.update(grad_accumulation=by_script or 1, lr_scale=1.0)
        self._leave_out(call, steps, accumulates=by_script > 1)
        self._remark_on(call, steps)

    def _leave_out(self, call: FitCall, steps: StepWatch, *, accumulates: bool) -> None:
        """Knobs that can't be turned in this call of fit. ``accumulates``: whether the script itself does."""
        left_out, backend = self.session.facts.left_out, self.watches.backend
        reduction = self.session.facts.loss_reduction
        if call.fed_by in BATCH_REASONS:
            left_out |= dict.fromkeys(("batch_size", "grad_accumulation"), BATCH_REASONS[call.fed_by])
        elif "batch_size" in left_out:
            left_out["grad_accumulation"] = left_out["batch_size"]  # their batches can't be made larger, either
        if call.acts_by_batch or call.saves_by_batch:
            left_out["steps_per_execution"] = call.why_not_several_steps(2, call.epoch_steps, backend)
        elif call.has_one_step:
            left_out["steps_per_execution"] = "an epoch of this fit has one step"
        if call.written.get("run_eagerly") and (why := what_is_set(call.model, call.stored)):
            left_out["run_eagerly"] = why
        if self._sets_rate(call):
            left_out["lr_scale"] = OWN_RATE
        if own_kinds(call.model) or has_own_loss(call.model):  # a layer may add one
            left_out |= steps.literal_rows(is_own=call.custom_step)
        if call.custom_step:
            left_out["grad_accumulation"] = OWN_LOSS
        elif reduction != "mean":
            left_out["grad_accumulation"] = why_no_parts(reduction)
        elif self._why_whole(call):
            left_out["grad_accumulation"] = self._why_whole(call)
        if accumulates:
            left_out["grad_accumulation"] = OWN_PARTS
        if backend == "torch":
            left_out["steps_per_execution"] = NOT_ON_TORCH

    def _why_whole(self, call: FitCall) -> str:
        """Why the model's batches can't be split, as far as was seen."""
        fits, rows = self.watches.fits, int(call.written.get("batch_size") or 0)
        return fits.split.why_whole(call.model, fits.steps.graphs(), rows) if fits is not None else ""

    def _remark_on(self, call: FitCall, steps: StepWatch) -> None:
        if steps.by_turns is not None:
            self.session.facts.hide_wait("several steps are taken in one call of some configs")
        elif self.watches.backend == "tensorflow" and (why := self._why_wait_is_unseen(call)):
            self.session.facts.hide_wait(why)
        if steps.calls >= 20 and steps.traces > max(4, steps.calls // 4):
            self.session.facts.remark(
                f"the training step was traced anew {steps.traces} times in {steps.calls} calls: batches of ever new"
                " shapes, or Python values where tensors were meant"
            )

    def _why_wait_is_unseen(self, call: FitCall) -> str:
        """On TensorFlow; models have strategies there only."""
        per_call, strategies = int(call.model.steps_per_execution), self.watches.strategies
        if per_call > 1:
            return f"{per_call} steps are taken in one call"
        if strategies is not None and strategies.in_use(call.model) not in SEEN_TO_WAIT:
            return "the training step fetches its batches by the iterator of a strategy"
        return ""

    def _device_evidence(self) -> None:
        config, call, strategies = self.session.request.config, self.call, self.watches.strategies
        if "memory_growth" in config:
            self._compare("memory_growth", self.session.facts.as_written.get("memory_growth"))
        if "strategy" in config and self.watches.backend != "tensorflow":
            self.session.knobs.inapplicable("strategy", elsewhere(self.watches.backend), sites=0)
        elif "strategy" in config and strategies is not None:
            self._compare("strategy", strategies.in_use(call.model if call is not None else None))

    def _step_evidence(self) -> None:
        if self.call is not None and self.steps is not None:
            self._fit_evidence(self.call, self.steps)
        elif self.session.knobs.wants("grad_accumulation"):  # nobody makes a step of several batches here
            self._compare("grad_accumulation", 1, why=self.session.facts.left_out["grad_accumulation"])

    def _fit_evidence(self, call: FitCall, steps: StepWatch) -> None:
        config = self.session.request.config
        observed: dict[str, Callable[[], object]] = {
            "run_eagerly": lambda: call.model.run_eagerly,
            "steps_per_execution": lambda: call.model.steps_per_execution,
            "workers": lambda: call.workers,
        }
        for knob, look in observed.items():
            if knob in config:
                self._compare(knob, look(), why=call.refused.get(knob, ""))
        if "grad_accumulation" in config:
            self._split_evidence(call)
        told = self.session.knobs.set_by("batch_size") is not SetBy.PATCH
        if "batch_size" in config and (call.fed_by == "arrays" or (told and self._largest_part(steps))):
            self._compare("batch_size", self._largest_part(steps))
        if "batch_size" in call.refused:
            self._compare("batch_size", None, why=call.refused["batch_size"])
        self._surplus_evidence(call, steps)
        if config.get("run_eagerly") is False and not call.model.run_eagerly:
            self._traced_evidence(call, steps)
        if "jit_compile" in config:
            self._xla_evidence(call, steps)

    def _surplus_evidence(self, call: FitCall, steps: StepWatch) -> None:
        """Whether calls of several steps took more of them than their epochs have, by the optimizer's own count."""
        if int(call.model.steps_per_execution) == 1 or call.custom_step:
            return
        counted, expected = steps.updates.counted, steps.batches_trained
        for knob in ("steps_per_execution", "batch_size") if counted > expected else ():
            if knob in self.session.request.config:
                why = f"the model was trained on {counted} batches, where its epochs have {expected}"
                self._compare(knob, None, why=why)
        if steps.updates.is_unread and counted <= expected and not call.refused.get("steps_per_execution"):
            self.session.knobs.report("steps_per_execution", Finding(Evidence.UNVERIFIABLE, UNREAD))

    def _split_evidence(self, call: FitCall) -> None:
        """Micro-batches in one update: those of the script's own, or the parts that a step was split into."""
        fits = self.watches.fits
        parts = fits.split.seen if fits is not None else 0
        whole = call.refused.get("grad_accumulation") or (self._why_whole(call) if parts > 1 else "")
        why = whole or (fits.split.refused if fits is not None else "")
        self._compare("grad_accumulation", None if whole else accumulation_of(call.model) * max(1, parts), why=why)

    def _traced_evidence(self, call: FitCall, steps: StepWatch) -> None:
        """Whether the step depends on what Python draws or counts, which a trace does once and no more."""
        if why := what_is_set(call.model, call.stored):
            pass
        elif self.watches.backend == "tensorflow":
            why = what_froze(call.model, steps.step_function) if steps.step_function is not None else ""
        else:
            why = DRAWS if steps.witness.traces_differ() else ""
        if why:
            self._compare("run_eagerly", None, why=why)

    def _compare(self, knob: str, observed: object, *, why: str = "") -> None:
        self.session.knobs.compare(knob, observed, why=why or f"observed {observed}")

    def _rate_evidence(self) -> None:
        knobs, optimizers = self.session.knobs, self.watches.optimizers
        if self.call is not None and self._sets_rate(self.call):
            knobs.compare("lr_scale", None, why=OWN_RATE)
        elif optimizers is not None and optimizers.rates.dropped:
            knobs.compare("lr_scale", None, why=optimizers.rates.dropped)
        elif knobs.set_by("batch_size") is not SetBy.PATCH and not self.watches.trajectory.rates:
            knobs.report("lr_scale", Finding(Evidence.CONTRADICTED, UNREAD_RATE, changed=0))
        elif optimizers is None or not optimizers.rates.scaled:
            knobs.inapplicable("lr_scale", "no optimizer has a rate", sites=0)
        else:
            knobs.compare("lr_scale", optimizers.rates.scale)

    def _sets_rate(self, call: FitCall) -> bool:
        """Whether the script gives the rate values of its own, in which no factor would stay."""
        optimizers = self.watches.optimizers
        was_set = optimizers is not None and optimizers.rates.rate_was_set() and not call.lowers_rate
        return call.sets_rate or was_set

    def _precision_evidence(self) -> None:
        """By the products of the traced step where there are any; a policy that no layer heeds shows there."""
        session, knobs = self.session, self.session.knobs
        set_by = knobs.set_by("precision")
        if set_by is SetBy.PATCH and self.watches.policy.chosen_by_script:
            knobs.inapplicable("precision", session.facts.left_out["precision"])
            return
        requested = session.request.config["precision"]
        if set_by is SetBy.PATCH and requested not in POLICIES:
            knobs.report("precision", Finding(Evidence.CONTRADICTED, f"Keras has no policy for {requested}", changed=0))
            return
        counts, wanted = self._products(), number_format(requested)
        if wanted == "float16" and set_by is SetBy.PATCH and not self._scales_its_loss():
            knobs.report("precision", Finding(Evidence.CONTRADICTED, UNSCALED, changed=0))
            return
        if not counts or not wanted:
            eager = self.call is not None and self.call.model.run_eagerly
            unseen = EAGER_PRODUCTS if eager else NO_PRODUCTS
            reason = f"nobody knows what {requested} computes in" if counts else unseen
            knobs.report("precision", Finding(Evidence.UNVERIFIABLE, reason))
            return
        most = max(counts, key=lambda dtype: counts[dtype])
        seen = ", ".join(f"{count} in {dtype}" for dtype, count in counts.items())
        finding = compare(
            wanted, most, set_by, sites=sum(counts.values()), changed=counts.get(wanted, 0),
            why=f"the step computes {seen}",
        )  # fmt: skip
        knobs.report("precision", finding)

    def _products(self) -> dict[str, int]:
        """Number format → products of matrices in the training step; empty where they can't be seen."""
        fits = self.watches.fits
        if fits is not None and self.watches.backend != "tensorflow" and (self.call is not None or self._by_batch):
            return dict(fits.steps.witness.products())
        if self.call is None or self.steps is None:
            return dict(self.session.facts.products)
        counts: Counter[str] = Counter()
        if self.watches.tf is not None:
            for graph in self.steps.graphs():
                counts.update(products(self.watches.tf, graph))
        return dict(counts)

    def _xla_evidence(self, call: FitCall, steps: StepWatch) -> None:
        wanted, compiled = bool(self.session.request.config["jit_compile"]), bool(call.model.jit_compile)
        if compiled != wanted:
            self._compare("jit_compile", compiled, why="a layer of the model doesn't support XLA")
            return
        if self.watches.backend == "tensorflow":
            compiled = any(is_compiled(graph) for graph in steps.graphs())
            # A flag alone compiles nothing; where what was compiled runs in threads, these can be seen.
            compiled = compiled and (not self.session.device.xla_runs_in_threads or xla_threads() > 0)
            self._compare("jit_compile", compiled, why="no code of XLA's has run")
        elif wanted and self.watches.backend == "torch" and compiler.counts().given_up:
            self.session.knobs.report("jit_compile", Finding(Evidence.UNVERIFIABLE, GIVEN_UP))
        else:
            self._compare("jit_compile", steps.witness.compiled, why="no compiled step has run")
