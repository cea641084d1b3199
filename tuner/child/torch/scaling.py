"""fp16 loss scaling where the script has none: gradients are scaled within a backward, and nowhere else.

A loss is multiplied before its backward, the gradients that are there already along with it, and all of them are
divided right after. So the script reads, clips, adds up and changes gradients as it wrote it, by whatever means, and an
update that would take an overflow is left out. Hooks on tensors are given what the script's own gradient would be. What
can't be given it, and gradients that are differentiated again, have the knob refused. PyTorch's ``GradScaler`` finds
the scale.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from ..patches import patch
from ..session import Session
from .losses import is_edge, leaves
from .parts import in_backward
from .types import Gradients, GradScaler, Group, Optimizer, Result, Tensor

Hook = Callable[[Any], object]

KNOB = "precision"
TWO_THREADS = "several threads train at once, and loss scaling can't tell their gradients apart"
DIFFERENTIATES = "the script differentiates its gradients, and loss scaling would scale them twice"
BACKWARD_HOOKS = "the script has hooks on the backward of its modules, which would be given scaled gradients"
KEEPS_INNER = "the script keeps gradients in the middle of its model, which would be scaled ones"
EDGES = "the script's backward begins at an edge of its graph, where loss scaling can't"
SHARDED = "each rank holds a part of the weights, and would scale them and leave updates out by what it sees of these"
TAKEN = "the script takes its gradients by torch.autograd.grad, past which no loss is scaled"
MODULE_HOOKS = ("register_full_backward_hook", "register_full_backward_pre_hook", "register_backward_hook")


class _Share:
    """Parameters whose gradients are divided at once, as a scaler wants them: in groups, as an optimizer has them."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.defaults: dict[str, object] = {}
        self.param_groups: Sequence[Group] = [{"params": parameters}]
        self.members = frozenset(map(id, parameters))


class LossScaling:
    """Scales backwards and leaves out updates that overflowed. ``optimizers``: those of the script that are known.

    A second thread that trains beside the first one has the knob refused: a backward scales what all optimizers hold.
    """

    def __init__(self, session: Session, torch: ModuleType, optimizers: Collection[Optimizer]) -> None:
        self.scaler: GradScaler = torch.amp.GradScaler(session.device.torch_type)
        self._session = session
        self._torch = torch
        self._optimizers = optimizers
        self._shares: list[_Share] = []
        """Divided since the scale was last updated; the scaler knows them by their ids."""
        self._stepped = False
        self._within: set[int] = set()
        """Ids of parameters whose gradients were divided in the middle of a backward."""
        self._others: dict[int, weakref.ref[Any]] = {}
        """Tensors that no optimizer holds and that backwards reach all the same, by id."""
        self._thread = 0
        self._busy = self._pending = False

    def install(self) -> None:
        """Patches what the script puts hooks on gradients with."""
        tensor, module = self._torch.Tensor, self._torch.nn.Module
        patch(tensor, "register_hook", self._with_hook(self._unscaled_for))
        patch(tensor, "register_post_accumulate_grad_hook", self._with_hook(self._divided_for))
        patch(tensor, "retain_grad", self._keeping)
        for name in MODULE_HOOKS:
            patch(module, name, self._refused)

    # hooks

    def _with_hook(self, given: Callable[[Hook], Hook]) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
        def make(original: Callable[..., Result]) -> Callable[..., Result]:
            def register(tensor: Tensor, hook: Hook) -> Result:
                return original(tensor, given(hook))

            return register

        return make

    def _unscaled_for(self, hook: Hook) -> Hook:
        """The hook on a tensor, which may change its gradient in place or give another one."""

        def call(gradient: Any) -> object:
            if not self._busy or gradient is None:
                return hook(gradient)
            scale = self.scaler.get_scale()
            # In the middle of a model it has but half of the digits, and would vanish.
            halved = gradient.dtype in (self._torch.float16, self._torch.bfloat16)
            given = (gradient.float() if halved else gradient) / scale
            version = given._version
            result: Any = hook(given)
            if result is None and given._version != version:
                result = given
            return None if result is None else (result * scale).to(gradient.dtype)

        return functools.wraps(hook)(call)

    def _divided_for(self, hook: Hook) -> Hook:
        """The hook on a parameter that has its gradient already."""

        def call(parameter: Any) -> object:
            if self._busy and id(parameter) not in self._within:
                self._within |= self._divide([parameter])
            return hook(parameter)

        return functools.wraps(hook)(call)

    def _keeping(self, original: Callable[..., Result]) -> Callable[..., Result]:
        """A tensor's gradient has the tensor's own digits: divided in fp16, it would vanish."""

        def retain_grad(tensor: Tensor) -> Result:
            if not tensor.is_leaf:
                self._refuse(KEEPS_INNER)
            return original(tensor)

        return retain_grad

    def gradient_taken(self) -> None:
        """The script has taken gradients past every backward: none of them was scaled."""
        self._refuse(TAKEN)

    def _refuse(self, reason: str) -> None:
        self._session.knobs.keep_script_value(KNOB, reason)

    def _refused(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def register(*args: object, **kwargs: object) -> Result:
            self._refuse(BACKWARD_HOOKS)
            return original(*args, **kwargs)

        return register

    # backward

    @contextmanager
    def around(
        self, losses: Sequence[Tensor], starts: Sequence[Tensor | None], *, again: bool = False,
        inputs: Sequence[Tensor] = (),
    ) -> Iterator[Gradients]:  # fmt: skip
        """Around a backward, which begins with the gradients that it is given here.

        ``starts`` are those of the script, one for each loss; None means ones. ``again``: whether its gradients may be
        differentiated in turn. ``inputs``: the tensors whose gradients are wanted, where it is but those.
        """
        obstacle = DIFFERENTIATES if again else EDGES if any(map(is_edge, losses)) else ""
        if not obstacle and any(is_edge(tensor) or not tensor.is_leaf for tensor in inputs):
            obstacle = KEEPS_INNER
        if self._session.ranks > 1 and any(map(_is_shard, self._held())):
            obstacle = SHARDED
        if obstacle:
            self._refuse(obstacle)
        # Without an optimizer nothing would leave an overflow out.
        if obstacle or not self._optimizers or self._is_beside_another():
            yield None if all(start is None for start in starts) else list(starts)
            return
        self._thread, self._busy, self._pending = threading.get_ident(), True, True
        given = self._begin(losses, starts)
        try:
            yield given
        except BaseException:
            with suppress(Exception):
                self._end()
            raise
        else:
            self._end()
        finally:
            self._busy = False

    def _held(self) -> Iterator[Tensor]:
        for optimizer in list(self._optimizers):
            yield from _parameters(optimizer)

    def _begin(self, losses: Sequence[Tensor], starts: Sequence[Tensor | None]) -> list[Tensor]:
        torch = self._torch
        self._look_for_others(losses)
        held = {id(p): p for p in self._held()}
        gradients = [p.grad for p in [*held.values(), *self._living()] if p.grad is not None]
        # Optimizers that step one after the other share one scale. A script may drop what overflowed by itself, too.
        if self._shares and (self._stepped or not gradients):
            self.scaler.update()
            self._shares.clear()
            self._stepped = False
        given = [
            torch.full_like(loss, 1.0) if start is None else start for loss, start in zip(losses, starts, strict=True)
        ]
        scaled = [self.scaler.scale(start) for start in given]
        self._multiply(gradients)
        return scaled

    def _multiply(self, gradients: Iterable[Any]) -> None:
        """By the scale, which is a power of two: no digit changes."""
        torch = self._torch
        by_device: dict[object, list[Any]] = {}
        for gradient in gradients:
            values = gradient._values() if gradient.is_sparse else gradient
            by_device.setdefault(values.device, []).append(values)
        with torch.no_grad():
            for device, alike in by_device.items():
                torch._foreach_mul_(alike, self.scaler.scale(torch.ones((), device=device)))

    def _end(self) -> None:
        done, self._within = self._within, set()
        for optimizer in list(self._optimizers):
            done |= self._divide(p for p in _parameters(optimizer) if id(p) not in done)
        self._divide(p for p in self._living() if id(p) not in done)

    def _divide(self, parameters: Iterable[Tensor]) -> set[int]:
        """Divides their gradients, and notes whether one overflowed; gives the ids of those that have one."""
        with_gradient = list({id(p): p for p in parameters if p.grad is not None}.values())
        if with_gradient:
            share = _Share(with_gradient)
            self.scaler.unscale_(share)
            self._shares.append(share)
        return set(map(id, with_gradient))

    def _look_for_others(self, losses: Sequence[Tensor]) -> None:
        """The way through the graph of a transformer of twelve layers takes 0.2 ms."""
        held = set(map(id, self._held()))
        self._living()
        for leaf in leaves(losses):
            if id(leaf) not in held and id(leaf) not in self._others:
                self._others[id(leaf)] = weakref.ref(leaf)

    def _living(self) -> list[Any]:
        held = {number: other() for number, other in self._others.items()}
        for number in [number for number, tensor in held.items() if tensor is None]:
            del self._others[number]
        in_optimizers = set(map(id, self._held()))
        return [tensor for number, tensor in held.items() if tensor is not None and number not in in_optimizers]

    # optimizers

    def step(self, optimizer: Optimizer, update: Callable[[], object]) -> object:
        """Runs the update, unless a gradient that it would take has overflowed: None then, as a scaler gives."""
        if in_backward(self._torch):
            ours = [p for p in _parameters(optimizer) if id(p) not in self._within]
            self._within |= self._divide(ours)
        elif self._is_beside_another(steps=True):
            return None  # the other thread's backward holds these gradients scaled
        overflowed = self._overflowed(optimizer)
        self._stepped, self._pending = True, False
        if overflowed is None:
            return update()
        if not _takes_overflow(optimizer):
            return None if float(overflowed) else update()
        # A fused update looks itself, without waiting for the device.
        held: Any = optimizer
        held.found_inf, held.grad_scale = overflowed, None
        try:
            return update()
        finally:
            del held.found_inf, held.grad_scale

    def closure_ran(self, optimizer: Optimizer) -> None:
        """An update that is under way can't be left out: it takes zeros instead of gradients that overflowed."""
        overflowed = self._overflowed(optimizer)
        self._stepped, self._pending = True, False
        if overflowed is not None and float(overflowed):
            for parameter in _parameters(optimizer):
                gradient: Any = parameter.grad
                if gradient is not None:
                    gradient.detach().zero_()

    def _overflowed(self, optimizer: Optimizer) -> Tensor | None:
        """A tensor above 0 where a gradient of the optimizer's has overflowed; None where none was scaled."""
        members = {id(p) for p in _parameters(optimizer)}
        states = vars(self.scaler)["_per_optimizer_states"]
        found: list[Any] = []
        for share in self._shares:
            if not members.isdisjoint(share.members):
                found += states[id(share)]["found_inf_per_device"].values()
        return sum(each.to(found[0].device) for each in found[1:]) + found[0] if found else None

    def _is_beside_another(self, *, steps: bool = False) -> bool:
        """Whether another thread is in the middle of its step; the knob is refused then."""
        is_at_work = self._busy if steps else self._busy or self._pending
        if not is_at_work or self._thread == threading.get_ident():
            return False
        if all(thread.ident != self._thread for thread in threading.enumerate()):
            return False  # it has ended
        self._refuse(TWO_THREADS)
        return True


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _is_shard(parameter: Tensor) -> bool:
    """Whether FullyShardedDataParallel has made it a part of a weight. What ``fully_shard`` makes tells all ranks of an
    overflow by itself.
    """
    return hasattr(parameter, "_fsdp_flattened")


def _takes_overflow(optimizer: Optimizer) -> bool:
    supports = getattr(optimizer, "_step_supports_amp_scaling", False)
    return bool(supports) and all(group.get("fused") for group in optimizer.param_groups)
