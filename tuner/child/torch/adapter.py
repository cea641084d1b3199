"""Instruments PyTorch: which libraries, which settings before the script's first line, and what the clock asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType

from ..adapter import Adapter, Library
from ..resting import tell_at_work
from ..session import Session
from ..turns import are_ahead
from ..watch import Watch
from . import applied, attention, compiler, trackers, trainers, xla
from .evidence import Observation
from .feed import LoaderFeed
from .files import divert_torch
from .modules import ROUNDINGS
from .seeds import seed
from .switch import TorchSwitcher
from .watches import FRAMEWORK, TorchWatches

OLDEST = (2, 4)
ABOVE = "keras"
"""The framework that may train on PyTorch, and whose own adapter watches that."""
STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
Installer = Callable[[Session, ModuleType], None]
"""Patches a library, right after its import."""


class TorchAdapter(Adapter):
    """One trial's instrumentation; ``watches`` and ``loaders`` are made when PyTorch is imported.

    ``is_here``: whether they were: where Keras trains on PyTorch, its own adapter does all of it.
    """

    framework = FRAMEWORK
    is_here = False
    watches: TorchWatches
    loaders: LoaderFeed

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def libraries(self) -> Mapping[str, Library]:
        """PyTorch, the trainers that wrap it, and what writes past ``open`` or beside the script."""
        return {
            "torch": Library(
                self.install, is_framework=True, oldest=OLDEST, seed=seed, divert=divert_torch, feed=self._feed,
                configure=self._configure,
            ),
            xla.LIBRARY: Library(self._install_xla),
            **self._watched(
                Watch.LOADER, {STATEFUL: self._install_stateful, xla.LOADERS: self._install_xla_loaders}
            ),
            **self._watched(Watch.MODULES, {"torch._dynamo.callback": compiler.watch_compilation}),
            **self._watched(Watch.MODULES, {"torch._dynamo.output_graph": self._watch_graphs}),
            **self._watched(Watch.TRAINERS, trainers.TRAINERS),
            **self._watched(Watch.TRACKERS, trackers.TRACKERS),
        }

    def _watched(self, watch: Watch, installers: Mapping[str, Installer]) -> dict[str, Library]:
        """Libraries that belong to a watch, each with what patches it."""

        def install(installer: Installer, module: ModuleType) -> None:
            if self.session.uses(watch):
                installer(self.session, module)

        return {name: Library(partial(install, installer)) for name, installer in installers.items()}

    def install(self, torch: ModuleType) -> None:
        """Settings first, patches next."""
        self.watches = TorchWatches(self.session, torch)
        self.is_here = True
        self._set(torch)
        self.watches.install()
        self.loaders = LoaderFeed(self.watches)
        self.session.feeds.add(self.loaders)
        applied.watch(self.watches)

    def _configure(self, torch: ModuleType) -> None:
        """The threads, in which Keras may compute, too."""
        session = self.session
        is_below = session.trained_by == ABOVE and session.request.knowledge.backend == FRAMEWORK
        if is_below and session.knobs.wants("threads"):
            torch.set_num_threads(int(session.request.config["threads"]))

    def _feed(self, torch: ModuleType) -> None:
        """PyTorch is here for its loaders."""
        if not self.session.uses(Watch.LOADER):
            return
        self.watches = TorchWatches(self.session, torch)
        self.is_here = True
        self.watches.loaders.install()
        feed = LoaderFeed(self.watches)
        self.session.feeds.add(feed)
        if self.session.applied is not None:
            self.session.applied.attend(feed.effects)

    def _install_stateful(self, session: Session, module: ModuleType) -> None:
        if self.is_here:
            self.watches.loaders.install_stateful(module)

    def _watch_graphs(self, session: Session, module: ModuleType) -> None:
        if session.measuring and self.is_here:
            compiler.watch_graphs(module, self.watches.modules.graph_compiled)

    def _install_xla(self, torch_xla: ModuleType) -> None:
        if self.is_here:
            self.watches.xla.install(torch_xla)

    def _install_xla_loaders(self, session: Session, module: ModuleType) -> None:
        if self.is_here:
            self.watches.xla_loaders.install(module)

    def _set(self, torch: ModuleType) -> None:
        session, config = self.session, self.session.request.config
        if session.request.max_device_bytes and config:
            session.device.torch_cap_memory(torch, session.request.max_device_bytes)
        if session.knobs.wants("threads"):
            torch.set_num_threads(int(config["threads"]))
        if session.knobs.wants("cudnn_benchmark"):
            torch.backends.cudnn.benchmark = bool(config["cudnn_benchmark"])
        if session.knobs.wants(attention.KNOB):
            self.watches.modules.attention.choose(str(config[attention.KNOB]))
        if session.knobs.wants("precision") and config["precision"] in ROUNDINGS:
            session.device.torch_set_rounding(torch, config["precision"] == session.device.torch_rounded)

    # the clock

    def synchronize(self) -> None:
        """Waits for the device, and counts how long it had waited for data."""
        began, watches = time.perf_counter(), self.watches
        self.session.device.torch_synchronize(watches.torch)
        waited_s = watches.loaders.take_waits() + watches.xla_loaders.take_waits()
        self.session.clock.settle(0.0, watches.xla.idle_of(waited_s, began))

    def ready(self) -> float | None:
        """What the training loader's workers have made and the loop hasn't fetched."""
        return self.watches.xla_loaders.ready_samples()

    def activity(self) -> int:
        """Changes with every graph that is compiled, every fp16 step that is skipped, every change of what counts.

        Not with what configs of a rotation compile for themselves.
        """
        watches = self.watches
        changes = watches.loaders.sources.changes_of_primary + watches.own_batches.changes
        graphs = compiler.counts().graphs - watches.compiled_turns.graphs
        return graphs + watches.xla.compiled() + watches.steps.scalers.skipped + changes

    def may_go_off(self) -> bool:
        """Not on XLA, whose steps are taken elsewhere, and where another framework's data feed the loop."""
        is_here = self.session.device.torch_type != "xla" and not self.watches.loaders.sources.is_fed_here
        return is_here and self.watches.steps.may_go_off

    def on_block(self) -> None:
        """Reads what makes the device wait: a scaler's skipped steps, the loss."""
        turns = self.session.clock.turns
        self.session.clock.min_window_steps = 3 * self._capacity
        tell_at_work(turns, self.loaders.at_work, asynchronous=self.session.device.asynchronous)
        self.watches.steps.scalers.settle()
        self.watches.xla.block_ended()
        self.watches.ranks.block_ended()
        self.watches.ddp.block_ended()
        if are_ahead(turns):
            self.session.device.torch_note_overhead(self.watches.torch, self.session.request.used_device_bytes)
        for loss in self.watches.steps.losses.take():
            self.watches.xla.own_reads += 1
            self.session.loss(loss.value, loss.site, loss.objective)

    @property
    def _capacity(self) -> int:
        return self.watches.loaders.prefetch_capacity + self.watches.xla_loaders.capacity

    def switcher(self) -> TorchSwitcher | None:
        """Switches the knobs that PyTorch has between two steps; not where each config is other graphs of XLA's."""
        return TorchSwitcher(self.watches) if self.session.device.torch_type != "xla" else None

    def observe(self) -> None:
        """Facts and evidence, where PyTorch trains."""
        if self.session.may_be_of(FRAMEWORK):
            Observation(self.watches).observe()
            self.watches.xla.observe()
