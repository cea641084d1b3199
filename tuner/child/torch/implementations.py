"""Exchanges the implementation of optimizers' updates between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from .optimizers import implementations

FLAGS = ("fused", "foreach")
SCALES = "_step_supports_amp_scaling"
"""Says of an optimizer that its step divides by a gradient scaler's scale, as fused ones do."""
_ABSENT = object()


class Implementations:
    """Of ``optimizers``, those that there are when it is asked; a fused update counts its steps on the device."""

    def __init__(self, torch: ModuleType, optimizers: Callable[[], Iterable[Any]]) -> None:
        self._torch = torch
        self._optimizers = optimizers
        self._kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._known: dict[int, tuple[set[int], dict[str, Any]]] = {}
        """An optimizer by its identity → its groups by theirs, and the flags with which it was made."""
        self._chosen = ""
        self._counts: dict[int, Any] = {}
        """A state by its identity → its count of steps as it was: its device and type."""

    def keep(self) -> None:
        """Remembers what the script asks for."""
        names = (*FLAGS, SCALES)
        self._kept = [
            (owner, {name: owner.get(name, _ABSENT) for name in names})
            for optimizer in self._optimizers()
            for owner in (*optimizer.param_groups, optimizer.defaults, vars(optimizer))
        ]
        self._known = {
            id(of): ({id(group) for group in of.param_groups}, {name: of.defaults.get(name, _ABSENT) for name in FLAGS})
            for of in self._optimizers()
        }
        self._counts = {id(state): state["step"] for of in self._optimizers() for _, state in self._counted(of)}

    def choose(self, chosen: str) -> None:
        """Has each optimizer that offers it update so."""
        self._chosen = chosen
        for optimizer in self._optimizers():
            if chosen not in implementations(optimizer):
                continue
            for owner in (*optimizer.param_groups, optimizer.defaults):
                owner.update(fused=chosen == "fused", foreach=chosen == "foreach")
            if chosen == "fused":
                vars(optimizer)[SCALES] = True
            self._count_as_asked(optimizer)

    def restore(self) -> None:
        """What the script asked for."""
        self._chosen = ""
        for owner, flags in self._kept:
            _put(owner, flags)
        self.reset_others()
        for optimizer in self._optimizers():
            self._count_as_asked(optimizer)
            for _, state in self._counted(optimizer):
                before = self._counts.get(id(state))
                if before is not None:
                    state["step"] = state["step"].to(device=before.device, dtype=before.dtype)

    def are(self, chosen: str) -> bool:
        """Whether all groups of all optimizers that offer it update so."""
        offering = [of for of in self._optimizers() if chosen in implementations(of)]
        return all(group.get(chosen) is True for of in offering for group in of.param_groups)

    def reset_others(self) -> None:
        """Groups that came since, by ``load_state_dict`` or ``add_param_group``, may have been saved or made with what
        a config asked for then: those get what their optimizer was made with, unless that is asked for now.
        """
        for optimizer in self._optimizers():
            groups, flags = self._known.get(id(optimizer), (set(), {}))
            for group in optimizer.param_groups if flags and not self._chosen else ():
                ours = {group.get(name) for name in FLAGS} == {True, False}
                if ours and id(group) not in groups:
                    _put(group, flags)

    def _count_as_asked(self, optimizer: Any) -> None:
        """Counts steps where the update that is asked for does: a fused one on the device, others on the host.

        An update that finds them elsewhere fails, or waits for the device once for each weight.
        """
        if "fused" not in implementations(optimizer):
            return
        fused = {id(each) for group in optimizer.param_groups if group.get("fused") for each in group["params"]}
        for weight, state in self._counted(optimizer):
            if id(weight) in fused:
                state["step"] = state["step"].to(device=weight.device, dtype=self._torch.float32)
            else:
                state["step"] = state["step"].cpu()

    def _counted(self, optimizer: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Weights whose steps are counted in a tensor, each with its state."""
        for weight, state in optimizer.state.items():
            if isinstance(state, dict) and isinstance(state.get("step"), self._torch.Tensor):
                yield weight, state


def _put(owner: dict[str, Any], flags: Mapping[str, Any]) -> None:
    for name, value in flags.items():
        if value is _ABSENT:
            owner.pop(name, None)
        else:
            owner[name] = value
