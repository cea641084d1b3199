"""What is told of a script that trains with JAX, and what was seen of each knob."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .. import allocator
from ..session import Session
from . import FRAMEWORK, fed
from .checkpointing import CheckpointWatch
from .client import ClientWatch
from .compiling import FIRST_STEPS, CompileWatch
from .donation import DonationWatch
from .products import ProductWatch
from .several import SeveralWatch
from .steps import StepWatch

RETRACE_SHARE = 0.05
MIN_RETRACES = 5
LATE_SHARE = 0.2
"""A validation compiles its graphs once; a script that goes on does so with every few steps."""
MIN_BESIDE = 2
NO_PARTS = "nothing computes a batch in parts with JAX"
NO_RATES = "the rates of the script's optimizer can't be seen"
NEW = "studies of JAX are new: hold the steps or samples per second against the script's own count"
NOT_SEEN = "jax.vjp, and functions that are called as step.lower(...).compile(), aren't seen"
SAME_ARRAYS = (
    "a step is given the same arrays with every call, and whether it trains on all of them or on parts isn't seen"
)
IN_A_LOOP = "the gradient is taken in a loop of JAX's (scan, fori_loop)"


class Observation:
    """Reads the watches at the end of a trial."""

    def __init__(
        self, session: Session, jax: ModuleType, steps: StepWatch, compiling: CompileWatch, client: ClientWatch,
        *, knobs: tuple[ProductWatch, DonationWatch, SeveralWatch, CheckpointWatch],
    ) -> None:  # fmt: skip
        self.session = session
        self.jax: Any = jax
        self.steps = steps
        self.compiling = compiling
        self.client = client
        self.knobs = knobs

    def observe(self) -> None:
        """Facts and evidence, where a step was seen, or what feeds them was measured by itself."""
        if not self.steps.trained:
            if self.session.request.probe is not None:
                fed.observe(self.session)
            return
        missing = self.session.device.jax_missing(self.jax, self.steps.devices.platforms)
        if missing:
            self.session.fail("unsupported", missing)
        memory = self.session.device.jax_memory(self.jax)
        if memory is not None:
            self.session.recorder.emit(memory)
        self._facts()
        fed.observe(self.session)
        self._remarks()
        self.compiling.observe()
        self._batches()
        self.client.report()
        for knob in self.knobs:
            knob.report()
        allocator.report(self.session.knobs)

    def _facts(self) -> None:
        facts, steps = self.session.facts, self.steps
        facts.framework, facts.framework_version = FRAMEWORK, str(self.jax.__version__)
        facts.loop = "eager" if steps.eager_steps and not steps.training else "function"
        facts.unit = "samples" if steps.passes.counts_samples else "steps"
        facts.wait_is_unseen = True
        facts.retraces = sum(max(0, each.traces.count - 1) for each in steps.training if not each.is_loop)

    def _remarks(self) -> None:
        steps, session = self.steps, self.session
        remark = session.facts.remark
        remark(NEW)
        calls, retraces = sum(function.calls for function in steps.training), session.facts.retraces
        if retraces >= MIN_RETRACES and retraces > RETRACE_SHARE * calls:
            remark(
                f"the training step was traced anew {retraces} times in {calls} calls: shapes, types or static "
                "arguments change from call to call"
            )
        elif self.compiling.late_steps >= max(MIN_RETRACES, LATE_SHARE * (session.clock.total_steps - FIRST_STEPS)):
            remark(
                f"XLA compiled {self.compiling.late} graphs after the first {FIRST_STEPS} steps: what the script "
                "computes beside its step has other shapes each time"
            )
        for name, why in self._doubts():
            remark(f"{why}: each call of {name} counts as one step")
        for name in steps.apart:
            remark(f"{name} takes no gradient, and is called every few steps: it was set apart as validation")
        if steps.in_turns:
            remark(f"{', '.join(steps.in_turns)} train the same parameters by turns: the calls of each count as steps")
        for name, calls in steps.beside.items():
            if calls >= MIN_BESIDE:
                remark(f"{name} trains, too, by turns with what is counted: {calls} times it counted as no step")
        if steps.schedule_is_unknown:
            remark("optax.MultiSteps is given a function: each of its batches counts as one step")
        if not steps.passes.counts_samples and not steps.passes.own_batches.is_wanted:
            remark(f"steps are counted, and not samples: {self._why_uncounted}")
            steps.passes.own_batches.hint()

    def _doubts(self) -> Iterator[tuple[str, str]]:
        """Functions whose steps aren't known, and why."""
        for each in self.steps.training:
            if each.traces.any(lambda trace: trace.is_in_loop and not trace.steps):
                yield each.name, f"{IN_A_LOOP} of which nobody knows how often it runs, or whether it updates"
            if each.traces.any(lambda trace: trace.is_in_branch):
                yield each.name, "an update is in a branch (cond, switch) of which nobody knows how often it is taken"
            if each.traces.misses:
                yield each.name, f"it was traced in several ways, and {each.traces.misses} times nobody knows in which"

    @property
    def _why_uncounted(self) -> str:
        steps = self.steps
        if any(each.traces.any(lambda trace: trace.is_in_loop) for each in steps.training):
            return IN_A_LOOP
        if steps.passes.unsure:
            return SAME_ARRAYS
        if steps.passes.differing:
            lengths = ", ".join(map(str, steps.passes.differing))
            return f"what a step is given is {lengths} long, and none of that is the batch's length for most of it"
        return (
            "what a step is given holds no batch: that may be in what the function closes over, or have the shape of a "
            "parameter"
        )

    def _batches(self) -> None:
        session, steps = self.session, self.steps
        facts = session.facts
        if not session.request.config:
            if steps.passes.counts_samples and steps.passes.rows:
                facts.as_written.setdefault("batch_size", steps.passes.rows)
            facts.as_written["allocator"] = allocator.in_use() or None
            self.client.observe()
            for knob in self.knobs:
                knob.written()
            why = fed.why_not_resized(session, steps.passes.rows)
            facts.left_out.update({"batch_size": why} if why else {}, grad_accumulation=NO_PARTS, lr_scale=NO_RATES)
        if steps.passes.own_batches.is_wanted:
            steps.passes.own_batches.observe()
        elif "batch_size" in session.knobs.requested:
            if steps.passes.counts_samples:
                session.knobs.compare("batch_size", steps.passes.rows)
            else:
                session.knobs.inapplicable("batch_size", self._why_uncounted)


def why_no_step(steps: StepWatch) -> str:
    """A line for the author of a script that uses JAX, and of which no step was seen: what was looked for."""
    if steps.tracing.ahead and not steps.training:
        return (
            f"no training step was seen: {steps.tracing.ahead} is traced ahead of its calls; {NOT_SEEN}, and"
            " tuner.report(step=n) tells of them"
        )
    if steps.tracing.gradients + steps.eager_gradients:
        return (
            "no training step was seen: gradients were taken, but neither an update by optax.apply_updates was, nor a"
            " second gradient of other parameters"
        )
    return (
        "no training step was seen: looked for were jax.grad and jax.value_and_grad, within jax.jit or not, and"
        f" optax.apply_updates; {NOT_SEEN}, and tuner.report(step=n) tells of them"
    )
