"""PyTorch's backward and optimizers: where a step ends, fp16 loss scaling, fused updates."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ..patches import patch
from ..session import Session
from .gradients import GradientWatch
from .learning_rates import KNOB, RateWatch
from .losses import LossWatch, remember_plain
from .optimizers import Stepped, describe, implementations
from .scalers import ScalerWatch
from .trajectory import TrajectoryWatch
from .types import (
    Closure,
    Entry,
    Gradients,
    GradScaler,
    Group,
    Keywords,
    Optimizer,
    Result,
    Tensor,
    Tensors,
    Wrap,
)
from .weights import WeightWatch

BackwardListener = Callable[[bool], None]
"""Is told whether it is the first loss of a step: a GAN has several."""


class StepWatch:
    """Patches backward and step. A scaled step is arranged here and nowhere else."""

    def __init__(
        self, session: Session, torch: ModuleType, backward_ran: BackwardListener, gradients: GradientWatch
    ) -> None:
        self.session = session
        self.torch = torch
        self.backward_ran = backward_ran
        self.gradients = gradients
        self.scalers = ScalerWatch()
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.stepped: list[Stepped] = []
        self.together = 0
        self._described: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.backwards = 0
        self.steps = 0
        self.evaluations = 0
        """Of closures that the script gives its optimizer, beyond the first one in a step."""
        self.scaled_by_script = False
        self.losses = LossWatch(session)
        self.rates = RateWatch(session)
        self.trajectory = TrajectoryWatch(session, torch)
        self.weights = WeightWatch(session, torch)
        self.in_optimizer = False
        self.in_backward = False
        self.scaler: GradScaler | None = None
        self.scaler_used = False
        self.unscaled: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.precision = session.knobs.wanted("precision")

    def _delegated(self, knob: str) -> None:
        if knob == "precision":
            self.precision = self.scaler = None

    def install(self) -> None:
        """Patches what the mode needs."""
        self.session.knobs.on_delegation(self._delegated)
        torch = self.torch
        optimizer = torch.optim.Optimizer
        changes = self.precision == "fp16"
        if self.session.measuring or changes:
            patch(torch.autograd, "backward", self._backward)
            patch(optimizer, "profile_hook_step", self._profile_hook_step)
        turned = any(self.session.knobs.wants(knob) for knob in ("optimizer", KNOB))
        if self.session.measuring or changes or turned:
            patch(optimizer, "add_param_group", self._add_param_group)
        if changes or self.gradients.waiting:
            patch(torch.nn.utils, "clip_grad_norm_", self._clip)
            patch(torch.nn.utils, "clip_grad_value_", self._clip)
        if self.session.measuring or changes:
            patch(torch.amp.GradScaler, "scale", self._note_scaler)
        if self.session.measuring:
            patch(torch.amp.GradScaler, "update", self.scalers.watched)
            self.trajectory.install()
        if self.precision == "fp16":
            self.scaler = torch.amp.GradScaler(self.session.device.torch_type)

    # backward

    def _backward(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def backward(tensors: Tensors, grad_tensors: Gradients = None, *args: object, **kwargs: object) -> Result:
            if not self.session.here or self.in_backward:
                return original(tensors, grad_tensors, *args, **kwargs)
            self.session.check_stop()
            self.gradients.backward_begins()
            self.in_backward = True
            try:
                losses = _as_list(self.torch, tensors)
                leads = self.losses.see(losses, alone=len(losses) == 1 and _all_none(grad_tensors))
                scaled = self._scale(losses, grad_tensors)
                result = original(tensors, scaled, *args, **kwargs)
            finally:
                self.in_backward = False
            if self.session.measuring:
                self._observe_backward(leads)
            return result

        return backward

    def _scale(self, losses: list[Tensor], grad_tensors: Gradients) -> Gradients:
        """The gradients to start from: under fp16, times the scaler's scale."""
        # Without an optimizer nobody would divide by the scale again.
        scaler = self.scaler if self.optimizers else None
        if scaler is None:
            return grad_tensors
        self._update_scaler()
        given = _starts(self.torch, losses, grad_tensors)
        starts = [
            self.torch.full_like(loss, 1.0) if start is None else start
            for loss, start in zip(losses, given, strict=True)
        ]
        return [scaler.scale(start) for start in starts]

    def _observe_backward(self, leads: bool) -> None:
        self.backwards += 1
        self.backward_ran(leads)
        if not self.optimizers and not self.in_optimizer:
            self.losses.step_ends()
            self.session.step("torch")

    # optimizer

    def _profile_hook_step(self, original: Wrap) -> Wrap:
        def profile_hook_step(function: Callable[..., object]) -> Callable[..., object]:
            inner = original(function)

            def step(optimizer: Optimizer, *args: object, **kwargs: object) -> object:
                if not self.session.here or self.in_optimizer:
                    return inner(optimizer, *args, **kwargs)
                return self._step(inner, optimizer, args, kwargs)

            return _wearing(step, inner)

        return profile_hook_step

    def _describe(self, optimizer: Optimizer) -> None:
        self._described.add(optimizer)
        # Optimizers that follow each other (one a fold, say) don't share a loop; those that live together do.
        self.together = max(self.together, len(self._described))
        described = describe(self.torch, optimizer)
        if self.together > len(self.stepped) or described not in self.stepped:
            self.stepped.append(described)

    def _step(
        self, inner: Callable[..., object], optimizer: Optimizer, args: tuple[object, ...], kwargs: Keywords
    ) -> object:
        if optimizer not in self._described:
            self._describe(optimizer)
        closure = args[0] if args else kwargs.get("closure")
        if callable(closure):
            args = (self._counted(optimizer, closure), *args[1:])
            kwargs = {k: v for k, v in kwargs.items() if k != "closure"}
        if not callable(closure):
            self._look_at_gradients(optimizer)
        self.weights.step_begins(optimizer)
        self.in_optimizer = True
        try:
            if self.scaler is None:
                result = inner(optimizer, *args, **kwargs)
            else:
                self.scaler_used = True
                # The scaler calls ``optimizer.step`` itself; ``in_optimizer`` lets that call straight through.
                result = self.scaler.step(optimizer, *args, **kwargs)
        finally:
            self.in_optimizer = False
        self.steps += 1
        self.weights.stepped(optimizer)
        self.losses.step_ends()
        if self.session.measuring:
            self.rates.stepped(optimizer)
            self.trajectory.stepped(optimizer)
            self.session.step("torch")
        return result

    def _look_at_gradients(self, optimizer: Optimizer) -> None:
        is_first = not self.steps and not self.scalers.begun
        self.gradients.step_begins(self.optimizers, lambda: self._scale_of_gradients(optimizer), is_first=is_first)

    def _scale_of_gradients(self, optimizer: Optimizer) -> float:
        """What a scaler has multiplied the gradients by that a step begins with; a fused one divides by it itself."""
        if self.scaler is not None and optimizer not in self.unscaled:
            return float(self.scaler.get_scale())
        given = getattr(optimizer, "grad_scale", None)
        return 1.0 if given is None else float(given)

    def _counted(self, optimizer: Optimizer, closure: Closure) -> Closure:
        """Every evaluation is a step: LBFGS updates between them, and takes twenty in what it calls one step."""
        evaluations = 0

        def evaluate() -> object:
            nonlocal evaluations
            evaluations += 1
            if evaluations > 1 and self.session.measuring:
                self.evaluations += 1
                self.session.step("torch")
            loss = closure()
            self._look_at_gradients(optimizer)
            return loss

        return evaluate

    def _update_scaler(self) -> None:
        """Before the first backward after a step: optimizers that step one after the other share one scale."""
        if self.scaler is not None and self.scaler_used:
            self.scaler.update()
            self.scaler_used = False
            self.unscaled.clear()

    def _clip(self, original: Callable[..., object]) -> Callable[..., object]:
        def clip(parameters: object, *args: object, **kwargs: object) -> object:
            if self.scaler is not None:
                for optimizer in set(self.optimizers) - set(self.unscaled):
                    self.scaler.unscale_(optimizer)
                    self.unscaled.add(optimizer)
            self.gradients.clipping_begins(self.optimizers)
            return original(parameters, *args, **kwargs)

        return clip

    def _note_scaler(self, original: Callable[..., object]) -> Callable[..., object]:
        def scale(scaler: GradScaler, *args: object, **kwargs: object) -> object:
            result = original(scaler, *args, **kwargs)
            if scaler is not self.scaler and scaler.is_enabled():
                self.scaled_by_script = True
                if args and isinstance(result, self.torch.Tensor):
                    remember_plain(result, args[0])
            return result

        return scale

    def _add_param_group(self, original: Callable[..., object]) -> Callable[..., object]:
        def add_param_group(optimizer: Optimizer, param_group: Group) -> object:
            result = original(optimizer, param_group)
            if self.session.here:
                if optimizer not in self.optimizers:
                    self.optimizers.add(optimizer)
                if self.session.knobs.wants("optimizer"):
                    self._choose_implementation(optimizer)
                self.rates.group_added(optimizer)
            return result

        return add_param_group

    def _choose_implementation(self, optimizer: Optimizer) -> None:
        chosen = self.session.request.config["optimizer"]
        if chosen not in implementations(self.torch, optimizer):
            return
        group = optimizer.param_groups[-1]
        group["fused"], group["foreach"] = chosen == "fused", chosen == "foreach"
        optimizer.defaults.update(fused=group["fused"], foreach=group["foreach"])
        if chosen == "fused":
            vars(optimizer)["_step_supports_amp_scaling"] = True


def _all_none(gradients: Gradients) -> bool:
    return gradients is None or (isinstance(gradients, (list, tuple)) and all(g is None for g in gradients))


def _as_list(torch: ModuleType, tensors: Tensor | Sequence[Entry]) -> list[Entry]:
    """A tensor has a length, too: it is told from a sequence of them by its class."""
    several: Any = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    return list(several)


def _starts(torch: ModuleType, losses: Sequence[Tensor], gradients: Gradients) -> Sequence[Tensor | None]:
    """What each loss's backward starts from; None where that is ones."""
    return [None] * len(losses) if gradients is None or _all_none(gradients) else _as_list(torch, gradients)


def _wearing(function: Callable[..., object], original: Callable[..., object]) -> Callable[..., object]:
    """``functools.wraps`` that also works for bound methods."""
    for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(function, attribute, getattr(original, attribute, None))
    vars(function)["__wrapped__"] = original
    return function
