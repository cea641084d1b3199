"""All watches of one trial on PyTorch, and what one of them has to tell another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any

from ..own_batches import OwnBatches, Spot
from ..patches import patch
from ..session import Session
from ..watch import Watch
from .batches import sizes_of, told_apart_by
from .checkpoints import ResumeWatch
from .compiled_turns import CompiledTurns
from .datasets import length
from .ddp import DdpWatch
from .evaluations import EvaluationWatch
from .gradients import GradientWatch
from .loader import LoaderWatch
from .losses import leaves
from .modules import ModuleWatch
from .processes import ProcessWatch
from .ranks import RanksWatch
from .steps import StepWatch
from .taken_gradients import TakenGradients
from .types import Module, Tensor
from .xla import XlaWatch
from .xla_loaders import XlaLoaderWatch

FRAMEWORK = "torch"
MOST_WALKS = 8
"""Through the graphs of losses: one of a transformer of twelve layers takes 0.2 ms."""


class TorchWatches:
    """Made when PyTorch is imported. ``own_batches``: counts those that no DataLoader gives."""

    def __init__(self, session: Session, torch: ModuleType) -> None:
        self.session = session
        self.torch = torch
        self.own_batches = OwnBatches(session)
        self._sizes: dict[Spot, int] = {}
        self._step = self._evaluations = self._told = 0
        """The newest optimizer step that a backward ran in, evaluations before it, and those that sources were told."""
        self._called_at, self._walks, self._goes_on = -1, 0, False
        """The newest optimizer step before a training call; looks at further losses of one, and what the last found."""
        self.set_threads: Callable[[int], None] = torch.set_num_threads
        self.threads_set = not session.uses(Watch.MODULES)  # where nobody sees it, the script may do so
        """Whether the script sets the number of threads itself."""
        self.benchmark_at_import = bool(torch.backends.cudnn.benchmark)
        self.modules = ModuleWatch(session, torch, self._called)
        self.compiled_turns = CompiledTurns(session, torch, self.modules)
        self.gradients = GradientWatch(session, torch, self._is_exact)
        self.loaders = LoaderWatch(session, torch, self._batch_fetched)
        self.loaders.sources.resigns = session.device.torch_type != "xla"  # whose loaders fetch ahead of the loop
        self.evaluations = EvaluationWatch(session.clock, self.loaders.sources)
        if session.measuring:
            self.modules.asks = self.evaluations.called
        rollouts, sources = self.modules.rollouts, self.loaders.sources
        self.evaluations.is_acting = rollouts.is_known
        rollouts.is_of_each_batch = self.evaluations.comes_with_each_batch
        rollouts.is_given = lambda: sources.primary is not None and sources.untrained_on is not None
        rollouts.is_dealt_out = lambda: self.evaluations.between_batches
        # While a CUDA graph is noted down nothing may be read.
        rollouts.written.may_read = lambda: not session.device.torch_is_capturing(torch)
        rollouts.is_open = lambda: (
            (not sources.batches or self.evaluations.between_batches) and rollouts.written.may_read()
        )
        self.steps = StepWatch(session, torch, self._backward_ran, self._step_ends, self.gradients)
        self.modules.only_takes = lambda: self.steps.by_hand.only_takes and not self.steps.optimizers
        self.taken = TakenGradients(session, torch, self.steps)
        self.steps.unseen_gradient = self._gradient_unseen
        if session.measuring:
            self.steps.losses.begins = self._backward_begins
        self.steps.batches = lambda: self.loaders.sources.batches
        self.xla = XlaWatch(session, self.steps)
        self.xla_loaders = XlaLoaderWatch(session, torch, self.loaders)
        self.xla.given = self.xla_loaders.options.graph_given
        self.xla_loaders.options.is_eager = lambda: self.xla.is_eager
        self.ranks = RanksWatch(session, torch)
        self.ddp = DdpWatch(session, torch)
        self.resumes = ResumeWatch(session, torch, self.steps.rates)
        self.loaders.phases.on_other = self.steps.rates.drop
        session.clock.instruments.listeners.append(self._missed)

    def install(self) -> None:
        """Patches what the mode needs; nothing of the script's has run yet."""
        uses = self.session.uses
        if uses(Watch.LOADER):
            self.loaders.install()
        if uses(Watch.MODULES):
            patch(self.torch, "set_num_threads", self._noting_threads)
            self.modules.install()
            self.ddp.install()
        if uses(Watch.OPTIMIZER):
            self.steps.install()
            self.resumes.install()
        if self.session.measuring and uses(Watch.OPTIMIZER):
            patch(self.torch.nn.Module, "eval", self._noting_eval)
            self.taken.install()
        if self.session.measuring and uses(Watch.MODULES):
            for place in (self.torch.cuda, self.torch.cuda.memory, getattr(self.torch, "accelerator", None)):
                if hasattr(place, "reset_peak_memory_stats"):
                    patch(place, "reset_peak_memory_stats", self._noting_peaks)
        if self.session.measuring and uses(Watch.PROCESSES):
            ProcessWatch(self.session, self.torch).install()

    def _missed(self, count: int) -> None:
        """So many steps went without the instruments: in what was counted they are as those before."""
        times = 1 + count / max(1, self.session.clock.total_steps)
        self.steps.missed(times)
        self.modules.covered_backwards = round(self.modules.covered_backwards * times)
        self.loaders.sources.missed(count)

    def _noting_threads(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_num_threads(*arguments: Any, **named: Any) -> Any:
            self.threads_set = True
            return original(*arguments, **named)

        return set_num_threads

    def _noting_eval(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A validation begins, perhaps, which is to be seen."""

        def eval(module: Module) -> Any:  # PyTorch's own name
            if self.session.measuring and self.session.here:
                self.session.clock.instruments.interrupted()
            return original(module)

        return eval

    def _noting_peaks(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def reset_peak_memory_stats(*arguments: Any, **named: Any) -> Any:
            self.session.device.torch_note_peaks(self.torch)
            return original(*arguments, **named)

        return reset_peak_memory_stats

    def _batch_fetched(self, key: str, batch: object, count: int) -> None:
        self.gradients.batch_fetched(key, batch, count)
        source, primary = self.loaders.sources[key], self.loaders.sources.primary
        rollouts, dataset = self.modules.rollouts, source.dataset()
        if rollouts.looks_for_written:
            rollouts.fetched(dataset, length(dataset), batch)
        is_first = not source.given and (primary is None or source.stack == primary.stack)  # of an iteration
        if is_first and rollouts.data_begin(dataset, length(dataset), source.made_s):
            self.session.clock.was_training()
        if self.session.ranks > 1 and not source.fetches:
            source.first = told_apart_by(self.torch, batch)

    def _backward_begins(self, losses: list[Tensor]) -> None:
        """A further loss of what a model gave (one a task, say) follows the call that the first one followed."""
        modules = self.modules
        if modules.calls_since_backward or self._called_at != self.steps.steps or not self.session.may_be_of(FRAMEWORK):
            return
        if self._walks < MOST_WALKS:
            self._walks, self._goes_on = self._walks + 1, False
            models = [model for model, root in modules.roots.items() if root.trains]
            trained = {id(weight) for model in models for weight in model.parameters()}
            with suppress(Exception):  # PyTorch itself says what can't be differentiated
                self._goes_on = any(id(leaf) in trained for leaf in leaves(losses))
        modules.calls_since_backward += self._goes_on

    def _backward_ran(self, leads: bool) -> None:
        if not self.session.may_be_of(FRAMEWORK):
            return
        self.taken.since_backward = 0
        is_again, by_hand = self._is_again(), self.steps.by_hand
        if by_hand.only_takes:
            self.loaders.sources.forget_gap()
            if self.session.clock.total_steps:
                self.session.clock.validation_begins(by_hand, since=by_hand.since_s)
        elif not by_hand.waits:
            self.loaders.sources.gradient_ran()
        self.evaluations.backward_ran()
        self.modules.backward_ran()
        self.ddp.backward_ran()
        sizes, self._sizes = self._sizes, {}
        if leads and self.loaders.sources.primary is None and not (is_again or by_hand.only_takes):
            self.own_batches.passed(sizes)

    def _is_again(self) -> bool:
        """Whether a backward belongs to another evaluation of a closure in one optimizer step: of the same batch, which
        counts once, and feeds each of them.
        """
        steps = self.steps
        if steps.steps != self._step:
            self._step, self._evaluations = steps.steps, steps.evaluations
        self.loaders.sources.missed(steps.evaluations - self._told)
        self._told = steps.evaluations
        return steps.evaluations > self._evaluations

    def _step_ends(self) -> None:
        self.loaders.sources.step_ends()
        self.own_batches.step_ends()
        self.evaluations.step_ends()

    def _gradient_unseen(self) -> None:
        """An optimizer is about to step, and no backward was seen since its last step: by ``torch.autograd.grad``."""
        if not self.session.may_be_of(FRAMEWORK):
            return
        if self.loaders.sources.has_fetched:
            self.loaders.sources.gradient_ran()
            self.evaluations.backward_ran()
        if self.taken.since_backward:  # else the last backward was of several optimizers, or the script makes its own
            self.taken.since_backward = 0
            self.steps.backwards += 1
            self.modules.backward_ran()
            if self.steps.scaling is not None:
                self.steps.scaling.gradient_taken()

    def _called(self, module: Module, given: Iterable[object]) -> None:
        """Of several calls of one class between two backwards the last one counts: a GAN's see one batch."""
        self.ddp.called()
        self._called_at = self.steps.steps
        if self.session.measuring:
            self.modules.rollouts.trains_on(given)
        if self.loaders.sources.primary is None and self.own_batches.is_wanted:
            # What the script compiles in one config only is the same model in all of them.
            model = getattr(module, "_orig_mod", module)
            self._sizes |= sizes_of(self.torch, type(model).__name__, given)

    def _is_exact(self) -> bool:
        """Whether matrix products are seen to be taken in full float32."""
        full = self.modules.observed_dtype in ("float32", "float64")
        return full and not any(self.session.device.torch_rounding(self.torch))
