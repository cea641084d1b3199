"""PyTorch's backward and optimizers: where a step ends, fused updates, and what the other watches are told of both."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

from ..leader import PATIENCE, Cycle
from ..patches import patch
from ..session import Session
from .by_hand import HandUpdates
from .compiler import Uncompiled
from .gradients import GradientWatch
from .learning_rates import KNOB, RateWatch
from .losses import LossWatch, is_edge, remember_plain
from .optimizers import Stepped, describe, implementations
from .parts import in_backward
from .scalers import ScalerWatch
from .scaling import LossScaling
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

CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "_clip_grads_with_norm_")
BackwardListener = Callable[[bool], None]
"""Is told whether it is the first loss of a step: a GAN has several."""


class StepWatch:
    """Patches backward and step. ``step_ends``: called before a step is counted.

    Of several optimizers that step on one batch the first one's steps are counted, and those within a backward (an
    optimizer a weight) as it ends. ``devices``: kinds of those on which the parameters of the optimizers lie, and
    ``loss_devices`` the losses.
    """

    def __init__(
        self, session: Session, torch: ModuleType, backward_ran: BackwardListener, step_ends: Callable[[], None],
        gradients: GradientWatch,
    ) -> None:  # fmt: skip
        self.session = session
        self.torch = torch
        self.backward_ran = backward_ran
        self.step_ends = step_ends
        self.gradients = gradients
        self.batches: Callable[[], int] = lambda: 0
        """Batches that the loop has fetched so far."""
        self.scalers = ScalerWatch()
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.stepped: list[Stepped] = []
        self.devices: set[str] = set()
        self.loss_devices: set[str] = set()
        self.together = self._others_steps = 0
        self._described: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.backwards = self.steps = self._backwards_before = 0
        self.unseen_gradient: Callable[[], None] = lambda: None
        """Is called before a step that no backward preceded."""
        self.defers: Callable[[Optimizer | None, bool], bool] = lambda optimizer, counts: False
        """Whether what was just done is given to a device later, and then the step ends, if it is one that counts."""
        self.evaluations = 0
        """Of closures that the script gives its optimizer, beyond the first one in a step."""
        self.scaled_by_script = False
        self.losses, self.rates = LossWatch(session), RateWatch(session)
        self.trajectory, self.weights = TrajectoryWatch(session, torch), WeightWatch(session, torch)
        self.by_hand = HandUpdates(session, torch, self.weights)
        self.scaling: LossScaling | None = None
        self._here = _Here()
        self._cycle = Cycle()
        self._awaits_backward = False
        """Whether a step that counts was taken within the backward that is under way."""
        self._uncompiled = Uncompiled(torch)
        self._newest: Callable[[], Optimizer | None] = lambda: None
        self._alone: Callable[[], Optimizer | None] = self._newest
        """Whose steps were the newest two that counted, with no backward around it and no closure given; else None."""

    @property
    def may_go_off(self) -> bool:
        """Whether the steps that the loop takes now are seen by an optimizer's alone."""
        return self._alone() is not None and not (self.evaluations or self._is_captured())

    def missed(self, times: float) -> None:
        """So many times as many backwards ran by now as were seen; optimizers' own steps are counted unwatched, too."""
        self._backwards_before = self.backwards = round(self.backwards * times)
        self.trajectory.missed()

    def _delegated(self, knob: str) -> None:
        if knob == "precision":
            self.scaling = None

    def install(self) -> None:
        """Patches what the mode needs."""
        self.session.knobs.on_delegation(self._delegated)
        torch = self.torch
        optimizer = torch.optim.Optimizer
        changes = self.session.knobs.wanted("precision") == "fp16"
        if self.session.measuring or changes:
            patch(torch.autograd, "backward", self._backward)
            patch(optimizer, "profile_hook_step", self._profile_hook_step)
        turned = any(self.session.knobs.wants(knob) for knob in ("optimizer", KNOB))
        if self.session.measuring or changes or turned:
            patch(optimizer, "add_param_group", self.group_adding)
        if self.gradients.waiting:
            for name in CLIPS:
                for place in (torch.nn.utils, torch.nn.utils.clip_grad):
                    if hasattr(place, name):
                        patch(place, name, self._known_change(to_unscale=False))
            patch(torch.amp.GradScaler, "unscale_", self._known_change(to_unscale=True))
        if self.session.measuring:
            patch(torch.amp.GradScaler, "scale", self._note_scaler)
            patch(torch.amp.GradScaler, "update", self.scalers.watched)
            self.trajectory.install()
        if changes:
            self.scaling = LossScaling(self.session, torch, self.optimizers)
            self.scaling.install()

    def _is_captured(self) -> bool:
        """Whether the script notes its step down as a CUDA graph: nothing is computed, and a look would break it."""
        return self.scaling is None and self.session.device.torch_is_capturing(self.torch)

    # backward

    def _backward(self, original: Callable[..., Result]) -> Callable[..., Result]:
        names = list(inspect.signature(original).parameters)[2:]
        original = self._uncompiled.theirs(original)

        def backward(tensors: Tensors, grad_tensors: Gradients = None, *args: object, **kwargs: object) -> Result:
            if (self.session.clock.instruments.off and self.scaling is None) or not self.session.here:
                return original(tensors, grad_tensors, *args, **kwargs)
            if in_backward(self.torch) or self._is_captured():
                return original(tensors, grad_tensors, *args, **kwargs)
            self.session.check_stop()
            self.gradients.backward_begins()
            self.session.meets_others()
            losses = _as_list(self.torch, tensors)
            if self.session.may_be_of("torch") and self.by_hand.backward_begins(losses, self.optimizers):
                self._count_step(None)  # that of the backward before
            leads = self.losses.see(losses, alone=len(losses) == 1 and _all_none(grad_tensors))
            around: AbstractContextManager[Gradients] = nullcontext(grad_tensors)
            if self.scaling is not None:
                args, kwargs = args[len(names) :], {**dict(zip(names, args, strict=False)), **kwargs}
                around = self._scaled(losses, grad_tensors, kwargs)
            with around as starts:
                result = original(tensors, starts, *args, **kwargs)
            self.gradients.backward_ended(self.optimizers)
            if self.session.measuring:
                self.loss_devices |= {loss.device.type for loss in losses if not is_edge(loss)}
                self._observe_backward(leads)
            return result

        return self._uncompiled.ours(backward)

    def _scaled(
        self, losses: Sequence[Tensor], grad_tensors: Gradients, given: Keywords
    ) -> AbstractContextManager[Gradients]:
        """What scales the losses of a backward; ``given``: its further arguments by name."""
        assert self.scaling is not None
        inputs: Any = given.get("inputs")
        if isinstance(inputs, Mapping):
            inputs = list(inputs.values())
        elif inputs is not None:  # they may be an iterator
            given["inputs"] = inputs = _as_list(self.torch, inputs)
        begins, again = _starts(self.torch, losses, grad_tensors), bool(given.get("create_graph"))
        return self.scaling.around(losses, begins, again=again, inputs=inputs or ())

    def _observe_backward(self, leads: bool) -> None:
        self.backwards += 1
        self.backward_ran(leads)
        by_hand = self.by_hand.may_be and not self.optimizers and not self._here.in_optimizer
        if by_hand:
            self.losses.step_ends()
        within, self._awaits_backward = self._awaits_backward, False
        if (by_hand and self.by_hand.are_seen) or within:
            self._count_step(None)

    # optimizer

    def _profile_hook_step(self, original: Wrap) -> Wrap:
        def profile_hook_step(function: Callable[..., object]) -> Callable[..., object]:
            hooked = original(function)
            inner = self._uncompiled.theirs(hooked)

            def step(optimizer: Optimizer, *args: object, **kwargs: object) -> object:
                if self.session.clock.instruments.off and not (self._here.in_optimizer or args or kwargs):
                    return self._unwatched_step(inner, optimizer)
                if not self.session.here or self._here.in_optimizer or self._is_captured():
                    return inner(optimizer, *args, **kwargs)
                return self._step(inner, optimizer, args, kwargs)

            return _wearing(self._uncompiled.ours(step), hooked)

        return profile_hook_step

    def _unwatched_step(self, inner: Callable[..., object], optimizer: Optimizer) -> object:
        """While the instruments are off. Steps of others alone show that another loop has begun."""
        result = self._inner_step(inner, optimizer, (), {})
        self.steps += 1
        self.trajectory.stepped(optimizer)
        instruments, is_its = self.session.clock.instruments, optimizer is self._alone()
        self._others_steps = 0 if is_its else self._others_steps + 1
        if is_its and not self._is_captured():  # the clock may wait for the device
            instruments.passed()
        elif optimizer not in self._described or self._others_steps > PATIENCE * len(self._described):
            instruments.interrupted()
        return result

    def _describe(self, optimizer: Optimizer) -> None:
        self._described.add(optimizer)
        self.devices |= {p.device.type for group in optimizer.param_groups for p in group["params"]}
        # Optimizers that follow each other (one a fold, say) don't share a loop; those that live together do.
        self.together = max(self.together, len(self._described))
        described = describe(optimizer)
        if self.together > len(self.stepped) or described not in self.stepped:
            self.stepped.append(described)

    def _step(
        self, inner: Callable[..., object], optimizer: Optimizer, args: tuple[object, ...], kwargs: Keywords
    ) -> object:
        if optimizer not in self._described:
            self._describe(optimizer)
        closure = kwargs.get("closure", args[0] if args else None)
        if not callable(closure):
            self._look_at_gradients(optimizer)
            if self.session.measuring and self.backwards == self._backwards_before and not in_backward(self.torch):
                self.unseen_gradient()
        elif "closure" in kwargs:
            kwargs = {**kwargs, "closure": self._counted(optimizer, closure)}
        else:
            args = (self._counted(optimizer, closure), *args[1:])
        self.weights.step_begins(optimizer)
        result = self._inner_step(inner, optimizer, args, kwargs, has_closure=callable(closure))
        self.steps += 1
        self.by_hand.optimizer_stepped()
        self._backwards_before = self.backwards
        self.losses.step_ends()
        if self.session.measuring:
            self.rates.stepped(optimizer)
            self.trajectory.took_step(optimizer)
            self._count_step(optimizer, counts=self._counts_now(optimizer), is_plain=not (args or kwargs))
        return result

    def _inner_step(
        self, inner: Callable[..., object], optimizer: Optimizer, args: tuple[object, ...], kwargs: Keywords,
        *, has_closure: bool = False,
    ) -> object:  # fmt: skip
        """PyTorch's own step, on gradients of the script's scale where it is ours that scales the losses."""
        self._here.in_optimizer = True
        try:
            if self.scaling is None or has_closure:
                return inner(optimizer, *args, **kwargs)
            return self.scaling.step(optimizer, lambda: inner(optimizer, *args, **kwargs))
        finally:
            self._here.in_optimizer = False

    def _counts_now(self, optimizer: Optimizer) -> bool:
        leads = self._cycle.leads(optimizer, self.batches())
        # Nothing may wait, be switched or end in the middle of a backward. Where its end goes unseen it counts at once.
        if leads and in_backward(self.torch) and not self._awaits_backward:
            self._awaits_backward = True
            return False
        return leads

    def _count_step(self, optimizer: Optimizer | None, *, counts: bool = True, is_plain: bool = False) -> None:
        """An optimizer has stepped, or what else a step is has ended; ``counts``: whether it ends a step here."""
        if counts:
            self.step_ends()
            before = self._newest()
            self._newest = weakref.ref(optimizer) if is_plain and optimizer is not None else lambda: None
            is_alone = optimizer is before and self.session.may_be_of("torch") and not in_backward(self.torch)
            self._alone = self._newest if is_alone else lambda: None
        if self.defers(optimizer, counts):
            return
        if optimizer is not None:
            self.weights.stepped(optimizer)
        if counts:
            self.session.step("torch")

    def _look_at_gradients(self, optimizer: Optimizer) -> None:
        is_first = not self.steps and not self.scalers.begun
        self.gradients.step_begins(self.optimizers, lambda: _scale_of_gradients(optimizer), is_first=is_first)

    def _counted(self, optimizer: Optimizer, closure: Closure) -> Closure:
        """Every evaluation is a step: LBFGS updates between them, and takes twenty in what it calls one step."""
        evaluations = 0

        def evaluate() -> object:
            nonlocal evaluations
            evaluations += 1
            if evaluations > 1 and self.session.measuring:
                self.evaluations += 1
                self._count_step(None)
            loss = closure()
            if self.scaling is not None:
                self.scaling.closure_ran(optimizer)
            self._look_at_gradients(optimizer)
            return loss

        return evaluate

    def _known_change(self, *, to_unscale: bool) -> Wrap:
        def make(original: Callable[..., object]) -> Callable[..., object]:
            def change(*args: object, **kwargs: object) -> object:
                if self.scaling is not None and args and args[0] is self.scaling.scaler:
                    return original(*args, **kwargs)  # a part of the backward
                return self.gradients.changing(
                    self.optimizers, lambda: original(*args, **kwargs), to_unscale=to_unscale
                )

            return change

        return make

    def _note_scaler(self, original: Callable[..., object]) -> Callable[..., object]:
        def scale(scaler: GradScaler, *args: object, **kwargs: object) -> object:
            result = original(scaler, *args, **kwargs)
            ours = self.scaling is not None and scaler is self.scaling.scaler
            if not ours and scaler.is_enabled():
                self.scaled_by_script = True
                if args and isinstance(result, self.torch.Tensor):
                    remember_plain(result, args[0])
            return result

        return scale

    def group_adding(self, original: Callable[..., object]) -> Callable[..., object]:
        """Notes the optimizer, and sets what the config wants of its parameter groups."""

        def add_param_group(optimizer: Optimizer, param_group: Group) -> object:
            states_rate = isinstance(param_group, dict) and "lr" in param_group
            result = original(optimizer, param_group)
            if self.session.here:
                if optimizer not in self.optimizers:
                    self.optimizers.add(optimizer)
                if self.session.knobs.wants("optimizer"):
                    self._choose_implementation(optimizer)
                self.rates.group_added(optimizer, states_rate=states_rate)
            return result

        return add_param_group

    def _choose_implementation(self, optimizer: Optimizer) -> None:
        chosen = self.session.request.config["optimizer"]
        if chosen not in implementations(optimizer):
            return
        group = optimizer.param_groups[-1]
        group["fused"], group["foreach"] = chosen == "fused", chosen == "foreach"
        optimizer.defaults.update(fused=group["fused"], foreach=group["foreach"])
        if chosen == "fused":
            vars(optimizer)["_step_supports_amp_scaling"] = True


class _Here(threading.local):
    """Of the thread that asks: whether it is within an optimizer's step."""

    in_optimizer = False


def _scale_of_gradients(optimizer: Optimizer) -> float:
    """What a script's scaler has multiplied the gradients by that a step begins with; a fused one divides by it."""
    given = getattr(optimizer, "grad_scale", None)
    return 1.0 if given is None else float(given)


def _all_none(gradients: Gradients) -> bool:
    return gradients is None or (isinstance(gradients, (list, tuple)) and all(g is None for g in gradients))


def _as_list(torch: ModuleType, tensors: Tensor | Sequence[Entry]) -> list[Entry]:
    """A tensor has a length, too, and so has an edge of a graph: they are told from a sequence by their classes."""
    several: Any = [tensors] if isinstance(tensors, torch.Tensor) or is_edge(tensors) else tensors
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
