"""torch_xla: where a step ends, what was compiled, and what takes turns in one process.

On an XLA device an optimizer's step is only noted down. It is given to the device, as one graph with all that came
before, by ``torch_xla.sync``, which ``mark_step``, ``xm.optimizer_step``, the loaders and ``torch_xla.compile`` call:
that is where it ends here. Nothing in this file gives anything to the device.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..patches import patch
from ..records import Compile, Phase
from ..session import Session
from .steps import StepWatch
from .types import Optimizer, Result

LIBRARY = "torch_xla"
LOADERS = "torch_xla.distributed.parallel_loader"
LONGEST_GRAPH = 64
"""A script that has taken so many steps without a sync never calls it."""
FEW = 0.5
"""Transfers to the host are worth a remark from so many in each step on."""
_READ = "aten::_local_scalar_dense"
"""How torch_xla counts the values that are read on the host: ``item``, ``float``, ``print``."""


class XlaWatch:
    """Patches ``torch_xla`` once it is imported; until then, and on other devices, it does nothing.

    ``own_reads``: values that were read by our own hooks, one for each block.
    """

    def __init__(self, session: Session, steps: StepWatch) -> None:
        self.session = session
        self.steps = steps
        self.own_reads = 0
        self.given: Callable[[bool], None] = lambda by_loader: None
        """Is told of every graph that is given to the device, and whether a loader of torch_xla's gave it."""
        self._library: Any = None
        self._pending = 0
        self._syncs = 0
        self._inside = False
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._in_window = 0
        self._compiled_before = 0
        self._steps_since = 0
        self._synchronized = time.perf_counter()

    def install(self, torch_xla: ModuleType) -> None:
        """Patches what the mode needs."""
        self._library = torch_xla
        if self.session.measuring:
            self.steps.defers = self._defers
            for owner in (torch_xla, sys.modules["torch_xla.torch_xla"]):
                patch(owner, "sync", self._sync)
            patch(sys.modules["torch_xla.core.xla_model"], "mark_step", self._sync)
        if self.session.measuring and self.session.device.torch_type == "xla":
            patch(sys.modules["torch_xla._internal.pjrt"], "spawn", self._spawn)

    def _spawn(self, original: Callable[..., Result]) -> Callable[..., Result]:
        """A process for each chip is one here: the script's own, as ``nprocs=1`` has it, where its steps are seen.

        Under ``autotune run`` it is the script's own affair.
        """

        def spawn(fn: Callable[..., object], nprocs: int | None = None, *args: Any, **kwargs: Any) -> Result:
            if nprocs is None:
                self.session.facts.remark("the script asks for a process on each chip: it is studied with one")
            return original(fn, 1 if nprocs is None else nprocs, *args, **kwargs)

        return spawn

    # steps

    @property
    def is_eager(self) -> bool:
        """Whether the script computes operation by operation, outside of what it compiles."""
        return self._library is not None and bool(self._library._XLAC._get_use_eager_mode())

    def _defers(self, optimizer: Optimizer | None, counts: bool) -> bool:
        """As ``StepWatch.defers``. ``optimizer``: None where the script updates by hand."""
        places = self.steps.devices or self.steps.loss_devices
        if "xla" not in places or self.is_eager:
            return False
        if not self._syncs and self._pending >= LONGEST_GRAPH:
            self.session.facts.remark(
                "the script never calls torch_xla.sync: the graph of each step holds those before it, and grows"
            )
            return False
        if optimizer is not None:
            self._stepped.add(optimizer)
        self._pending += counts
        return True

    def _sync(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def sync(*args: object, **kwargs: object) -> Result:
            if self._inside or not self.session.here:
                return original(*args, **kwargs)
            self._inside = True
            by_loader = sys._getframe(1).f_globals.get("__name__") == LOADERS
            try:
                result = original(*args, **kwargs)
            finally:
                self._inside = False
            self.given(by_loader)
            if self._pending:
                self._steps_end()
            return result

        return sync

    def _steps_end(self) -> None:
        count, self._pending = self._pending, 0
        self._syncs += 1
        self._steps_since += count
        for optimizer in list(self._stepped):
            self.steps.weights.stepped(optimizer)
        self._stepped.clear()
        self.session.step("torch", count)

    # what the clock asks

    def compiled(self) -> int:
        """Graphs that were compiled by now: it changes with every new one."""
        return self._samples("CompileTime")[0]

    def idle_of(self, waited_s: float, began: float) -> float:
        """Of the seconds that the loop waited for data since the device was waited for, those in which it was idle.

        To be called once that has been done again, which ``began`` then. The device had nothing to do before the last
        step's graph, or still had others to run: so it takes at most as long for each as it was waited for. That is as
        near as one comes without a graph, or a wait, of our own in each step.
        """
        now = time.perf_counter()
        lasted_s, computed_s = now - self._synchronized, self._steps_since * (now - began)
        self._synchronized, self._steps_since = now, 0
        return waited_s if self._library is None else min(waited_s, max(0.0, lasted_s - computed_s))

    def block_ended(self) -> None:
        """Counts the graphs that were compiled while it was measured."""
        compiled = self.compiled()
        if self.session.clock.phase is Phase.WINDOW:
            self._in_window += compiled - self._compiled_before
        self._compiled_before = compiled

    def _samples(self, metric: str) -> tuple[int, float]:
        """How often something was timed, and the nanoseconds that it took."""
        found = None if self._library is None else self._library._XLAC._xla_metric_data(metric)
        return (0, 0.0) if found is None else (int(found[0]), float(found[1]))

    def _count(self, counter: str) -> int:
        return int(self._library._XLAC._xla_counter_value(counter) or 0)

    # facts

    def observe(self) -> None:
        """What was compiled, and what of the script costs time on such a device."""
        if self._library is None or not self.session.clock.total_steps:
            return
        graphs, nanoseconds = self._samples("CompileTime")
        if graphs:
            hits, misses = self._count("PersistentCacheHit"), self._count("PersistentCacheMiss")
            self.session.recorder.emit(Compile(graphs, nanoseconds / 1e9, cache_hits=hits, cache_misses=misses))
        remark, steps = self.session.facts.remark, self.session.clock.total_steps
        if self._in_window == 1:
            remark(
                "XLA compiled 1 graph while the training was measured: it met a shape or number that was new, such as "
                "an epoch's last, smaller batch"
            )
        elif self._in_window:
            remark(
                f"XLA compiled {self._in_window} graphs while the training was measured: shapes or numbers of the "
                "script change from step to step"
            )
        reads = self._count(_READ) - self.own_reads
        if reads >= FEW * steps:
            remark(
                f"{reads} values were read on the host in {steps} steps (item(), print, if): each waits for the device"
            )
        others = sorted(
            name for name in self._library._XLAC._xla_counter_names()
            if name.startswith("aten::") and name != _READ and self._count(name) >= FEW * steps
        )  # fmt: skip
        if others:
            remark(f"XLA doesn't have {', '.join(others)}: in each step the host computes it")
