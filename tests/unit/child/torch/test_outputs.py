"""What a module gives keeps its type and what else it holds, whatever its tensors are exchanged for."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from tuner.child.torch.outputs import with_tensors

Pair = namedtuple("Pair", ["logits", "aux"])  # as torchvision's Inception gives
T = torch.ones(2)


class Noted(tuple[Any, ...]):
    """A tuple of a kind of its own, which is made in another way."""

    def __new__(cls, *, one: Any, note: str) -> Noted:
        made = super().__new__(cls, (one,))
        made.note = note
        return made

    note: str


@dataclasses.dataclass
class Output:
    """As a model of the user's own gives."""

    logits: Any
    name: str = "mine"
    hidden: Any = dataclasses.field(init=False, default=None)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """One that can't be changed."""

    logits: Any


class Listed(list[Any]):
    """A list of a kind of its own."""


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [leaf for entry in value for leaf in _leaves(entry)]
    if isinstance(value, (dict, UserDict)):
        return [leaf for entry in value.values() for leaf in _leaves(entry)]
    if dataclasses.is_dataclass(value):
        return [leaf for field in dataclasses.fields(value) for leaf in _leaves(getattr(value, field.name))]
    return []


def of_transformers() -> Any:
    """Imported here: the library takes a second, in every process that collects this file."""
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=T, hidden_states=(T, T))


VALUES: dict[str, Callable[[], Any]] = {
    "a tuple": lambda: (T, None, 3),
    "a list": lambda: [T, "text"],
    "a list of its own kind": lambda: Listed([T]),
    "a named tuple": lambda: Pair(T, (T, None)),
    "a tuple of its own kind": lambda: Noted(one=T, note="kept"),
    "what torch.max gives": lambda: torch.max(torch.rand(2, 3), dim=1),
    "a packed sequence": lambda: pack_sequence([torch.rand(3), torch.rand(2)]),
    "a dictionary": lambda: {"one": T, "two": [T]},
    "an ordered one": lambda: OrderedDict(out=T, aux=T),
    "one with a default": lambda: defaultdict(list, one=T),
    "another mapping": lambda: UserDict(one=T),
    "a dataclass": lambda: Output(T),
    "a frozen one": lambda: Frozen({"one": T}),
    "transformers' output": of_transformers,
}  # fmt: skip


@pytest.mark.slow  # 4 s beside three others
@pytest.mark.parametrize("name", VALUES)
def test_tensors_are_exchanged_and_all_else_stays(name: str) -> None:
    value = VALUES[name]()
    before = _leaves(value)
    changed = with_tensors(torch, value, lambda tensor: (tensor + 1).double())  # type: ignore[operator,attr-defined]  # a torch.Tensor
    assert type(changed) is type(value)
    assert changed is not value
    assert all(after is now for after, now in zip(before, _leaves(value), strict=True)), "what was given is as it was"
    after = _leaves(changed)
    assert len(after) == len(before) > 0
    assert all(torch.equal(new, (old + 1).double()) for new, old in zip(after, before, strict=True))
    assert with_tensors(torch, value, lambda tensor: tensor) is value


def test_what_else_a_value_holds_is_kept() -> None:
    double: Any = lambda tensor: tensor.double()  # noqa: E731  # it is given three times
    assert with_tensors(torch, VALUES["a tuple of its own kind"](), double).note == "kept"
    assert with_tensors(torch, VALUES["a dataclass"](), double).name == "mine"
    assert with_tensors(torch, VALUES["one with a default"](), double)["new"] == []
    given = VALUES["transformers' output"]()
    made = with_tensors(torch, given, double)
    assert made.last_hidden_state is made["last_hidden_state"] is made[0]
    assert list(made) == list(given)
    packed = with_tensors(torch, VALUES["a packed sequence"](), double)
    assert isinstance(packed, PackedSequence)
    assert with_tensors(torch, Output, double) is Output
