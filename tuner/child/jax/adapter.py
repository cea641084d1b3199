"""JAX in the list of adapters: which libraries, and what the clock asks."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from .. import allocator
from ..adapter import Adapter, Library
from ..applied import Effect
from ..resting import tell_at_work
from ..session import Session
from ..watch import Watch
from . import ABOVE, FRAMEWORK, is_below
from .ahead import PutWatch
from .checkpointing import CheckpointWatch
from .client import ClientWatch
from .compiling import CompileWatch
from .donation import DonationWatch
from .eager import EagerWatch
from .evidence import Observation, why_no_step
from .functions import JittedFunction
from .lead import Lead
from .patches import Instrumentation
from .products import ProductWatch
from .reads import ReadWatch
from .seeds import seed
from .several import SeveralWatch
from .steps import StepWatch

OLDEST = (0, 5)


class JaxAdapter(Adapter):
    """One trial's instrumentation; the watches are made when JAX is imported. Keras' own loops aren't seen here."""

    framework = FRAMEWORK
    steps: StepWatch | None = None
    _jax: ModuleType
    _patches: Instrumentation | None = None
    _products: ProductWatch
    _donation: DonationWatch
    _checkpointing: CheckpointWatch
    _several: SeveralWatch

    def __init__(self, session: Session) -> None:
        self.session = session
        self.compiling = CompileWatch(session)
        self.reads = ReadWatch(session)
        self.client = ClientWatch(session)

    @property
    def libraries(self) -> Mapping[str, Library]:
        """JAX, and what applies updates."""
        return {
            "jax": Library(self.install, is_framework=True, oldest=OLDEST, seed=seed, configure=self._configure),
            "optax": Library(self._install_optax),
        }

    @property
    def _is_needed(self) -> bool:
        return bool(self.session.measuring or self.session.request.config) and self.session.uses(Watch.JAX)

    def _configure(self, _: ModuleType) -> None:
        """The client, with which Keras may compute, too: nothing else is looked at where it is known to train."""
        session = self.session
        if not self._is_needed:
            return
        self.client.install()
        if session.trained_by != ABOVE:
            return
        if session.measuring:
            session.observers.append(self._observe_client)
        if session.applied is not None:
            session.applied.attend(lambda: self.client.effects() if is_below(session) else {})

    def install(self, jax: ModuleType) -> None:
        """Patches what the mode needs."""
        session = self.session
        if not self._is_needed:
            return
        self._jax = jax
        self.steps = StepWatch(session, jax)
        weights = self.steps.weights
        self._donation = DonationWatch(session, self.steps, jax)
        self._donation.install()
        self._several = SeveralWatch(session, self.steps, self.reads, jax)
        self._several.install()
        self._checkpointing = CheckpointWatch(session, self.steps, jax)
        self._checkpointing.install()
        session.feeds.putting = puts = PutWatch(jax)
        knobs = (self._donation, self._several, self._checkpointing)
        self._patches = Instrumentation(session, self.steps, jax, puts, knobs=knobs)
        self._patches.install()
        self._products = ProductWatch(session, self.steps, jax)
        self._products.install()
        if session.measuring:
            self.reads.install()
            EagerWatch(self.steps, jax).install()
            self.compiling.install(jax)
            self.compiling.is_ours = lambda: weights.is_reading
            self.steps.tracing.count = lambda: self.compiling.traces
            self.compiling.compiled = self.steps.tracing.compiled
            session.exit_listeners.append(self)
            donation, newest, wait = self._donation, self.steps.newest.alive, jax.block_until_ready
            lead = Lead(donation.lasting, wait, newest) if donation.is_turned else Lead(newest, wait)
            session.feeds.lead = lead
        if session.applied is not None:
            session.applied.attend(self._effects)
            session.applied.counts_devices(self.steps.devices.trained_on)

    def _install_optax(self, optax: ModuleType) -> None:
        if self._patches is not None:
            self._patches.install_optax(optax)

    def _effects(self) -> Mapping[str, Effect]:
        """For ``autotune run``: what became of the knobs, where no other framework is seen to train."""
        if self.steps is None or not self.steps.trained:
            return {}
        in_use, wanted = allocator.in_use(), self.session.knobs.wanted(allocator.KNOB)
        told = {**self.client.effects(), **self._products.effects(), **self._donation.effects()}
        told |= {**self._several.effects(), **self._checkpointing.effects()}
        return {**told, allocator.KNOB: Effect(int(in_use == wanted), allocator.NOT_LOADED)}

    # the clock

    def synchronize(self) -> None:
        """Waits for the newest step."""
        if self.steps is not None:
            self.steps.synchronize()

    def activity(self) -> int:
        """Changes with all that is compiled, and with every change of what counts."""
        if self.steps is None:
            return 0
        rows = sum(function.rows.changes for function in self.steps.training)
        rows += sum(feed.activity() for feed in self.session.feeds.all)
        return self.compiling.graphs + self.steps.passes.own_batches.changes + rows

    def ready(self) -> float | None:
        """What a loader has made and the loop hasn't fetched."""
        feeding = self.session.feeds.feeding
        return feeding.ready() if feeding is not None else None

    def may_go_off(self) -> bool:
        """Where each step is a call of one compiled function, and nothing that is watched feeds the loop.

        Not where calls wait for others: a stretch would end among them.
        """
        steps = self.steps
        if steps is None or self.session.feeds.feeding is not None or steps.awaits is not None:
            return False
        if self._several.is_turned:
            return False
        function = steps.leader.key
        if not isinstance(function, JittedFunction) or list(steps.training) != [function]:
            return False
        return function.tells and function.last.parts == 1

    def on_block(self) -> None:
        """Reads the loss."""
        feeding = self.session.feeds.feeding
        clock, asynchronous = self.session.clock, self.session.device.asynchronous
        clock.min_window_steps = 3 * feeding.capacity if feeding is not None else 0
        if feeding is not None:
            as_taken = feeding.begins_as_taken
            tell_at_work(clock.turns, feeding.at_work, asynchronous=asynchronous, as_taken=as_taken)
        if self.steps is None or not self.session.uses(Watch.LOSSES):
            return
        self.reads.is_ours = True
        try:
            loss = self.steps.take_loss()
        finally:
            self.reads.is_ours = False
        if loss is not None:
            self.session.loss(*loss)

    def script_ended(self) -> None:
        """Says why no step was seen, or nothing could be measured between two of them, where that is due to JAX."""
        session, steps = self.session, self.steps
        if steps is None or not session.measuring or not session.may_be_of(FRAMEWORK):
            return
        if not session.clock.total_steps and steps.uses_jax:
            session.fail("no-step", steps.holds_all or why_no_step(steps))
        elif steps.trained and not session.clock.is_measurable and steps.holds_all:
            session.fail("unsupported", steps.holds_all)

    def leaving(self) -> None:
        """Nothing is left to do."""

    def observe(self) -> None:
        """Facts and evidence, where JAX trained; what it compiled, where Keras trained on it."""
        if self.steps is None:
            return
        if self.session.may_be_of(FRAMEWORK):
            watches = (self.compiling, self.client)
            knobs = (self._products, self._donation, self._several, self._checkpointing)
            Observation(self.session, self._jax, self.steps, *watches, knobs=knobs).observe()
            self.reads.remark()
        elif is_below(self.session):
            self.compiling.observe()
            self._observe_client()

    def _observe_client(self) -> None:
        if is_below(self.session):
            self.client.observe()
            self.client.report()
