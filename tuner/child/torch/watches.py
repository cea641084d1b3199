"""All watches of one trial on PyTorch, and what one of them has to tell another."""

from __future__ import annotations

from types import ModuleType

from ..session import Session
from ..watch import Watch
from .checkpoints import ResumeWatch
from .gradients import GradientWatch
from .loader import LoaderWatch
from .modules import ModuleWatch
from .processes import ProcessWatch
from .steps import StepWatch

FRAMEWORK = "torch"


class TorchWatches:
    """Made when PyTorch is imported. ``size_is_stated``: samples are counted by what the script says a batch holds."""

    def __init__(self, session: Session, torch: ModuleType) -> None:
        self.session = session
        self.torch = torch
        self.size_is_stated = False
        self.modules = ModuleWatch(session, torch)
        self.gradients = GradientWatch(session, torch, self._is_exact)
        self.loaders = LoaderWatch(session, torch, self._batch_fetched)
        self.steps = StepWatch(session, torch, self._backward_ran, self.gradients)
        self.resumes = ResumeWatch(session, torch, self.steps.rates)

    def install(self) -> None:
        """Patches what the mode needs; nothing of the script's has run yet."""
        uses = self.session.uses
        if uses(Watch.LOADER):
            self.loaders.install()
        if uses(Watch.MODULES):
            self.modules.install()
        if uses(Watch.OPTIMIZER):
            self.steps.install()
            self.resumes.install()
        if self.session.measuring and uses(Watch.PROCESSES):
            ProcessWatch(self.session, self.torch).install()

    def _batch_fetched(self, key: str, batch: object, count: int) -> None:
        self.gradients.batch_fetched(key, batch, count)

    def _backward_ran(self, leads: bool) -> None:
        if not self.session.may_be_of(FRAMEWORK):
            return
        self.loaders.sources.gradient_ran()
        self.modules.backward_ran()
        size = self.session.stated_batch_size() if leads and self.loaders.sources.primary is None else 0
        if size:
            self.size_is_stated = True
            self.session.clock.add_samples(size, 0.0)

    def _is_exact(self) -> bool:
        """Whether matrix products are seen to be taken in full float32."""
        full = self.modules.observed_dtype in ("float32", "float64")
        return full and not any(self.session.device.torch_rounding(self.torch))
