"""The script's own callbacks of ``Model.fit``: which of them act with every batch, and which set the learning rate."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

from ..call_sites import codes

BATCH_METHODS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_ONLY_SHOW = frozenset({"keras", "tqdm", "wandb", "mlflow", "comet_ml", "neptune", "clearml", "tensorboard", "swanlab"})
"""Packages whose callbacks show or log what they are told with a batch, and change nothing in the training."""
_LIBRARIES = _ONLY_SHOW | {"builtins"}
_RATES = frozenset({"learning_rate", "lr"})


def listed(callbacks: object) -> list[object]:
    """What a script passes as ``callbacks``: nothing, one, a list of them or Keras' own ``CallbackList``."""
    inner = getattr(callbacks, "callbacks", callbacks) or ()
    return list(inner) if isinstance(inner, (list, tuple)) else [inner]


def acts_by_batch(callbacks: Iterable[object]) -> str:
    """The name of the first callback that does something of its own with every batch of training; "" for none."""
    for callback in callbacks:
        if any(_is_own(callback, method) for method in BATCH_METHODS):
            return type(callback).__name__
    return ""


def saves_by_batch(callbacks: Iterable[object]) -> str:
    """The name of the first callback that saves after so many batches; "" for none."""
    for callback in callbacks:
        if type(getattr(callback, "save_freq", None)) is int:
            return type(callback).__name__
    return ""


def sets_rate(callbacks: Iterable[object]) -> bool:
    """Whether one of them sets the learning rate to a figure of its own, be it in a later epoch."""
    callbacks = list(callbacks)
    scheduled = any("LearningRateScheduler" in type(callback).__name__ for callback in callbacks)
    return scheduled or not _RATES.isdisjoint(stored(callbacks))


def stored(callbacks: Iterable[object]) -> dict[str, str]:
    """Attributes that code of the script's own sets on something else than the callback itself, as far as it shows,
    by the name of the callback. What ``__init__`` sets is there before the training.
    """
    found: dict[str, str] = {}
    for callback in callbacks:
        for code in _own_code(callback):
            found.update(dict.fromkeys(_stored_in(code), type(callback).__name__))
    return found


def lowers_rate(callbacks: Iterable[object]) -> bool:
    """Whether one of them multiplies the learning rate that it finds."""
    return any("ReduceLROnPlateau" in type(callback).__name__ for callback in callbacks)


def _own_code(callback: object) -> Iterator[CodeType]:
    """Of the methods of the script's own classes, and of the functions that the callback was given."""
    owners = [cls for cls in type(callback).__mro__ if cls.__module__.partition(".")[0] not in _LIBRARIES]
    functions = [value for cls in owners for name, value in vars(cls).items() if name != "__init__"]
    for function in (*functions, *getattr(callback, "__dict__", {}).values()):
        plain = function.__func__ if isinstance(function, (MethodType, staticmethod, classmethod)) else function
        if isinstance(plain, FunctionType):
            yield from codes(plain.__code__)


def _stored_in(code: CodeType) -> Iterator[str]:
    own, held = {"self", *code.co_varnames[:1]}, ""  # a function within a method knows the callback by its name alone
    instructions = list(dis.get_instructions(code))
    added_to: dict[str, str] = {}  # what ``self.count += 1`` sets it on is loaded, and copied, first
    for each, following in zip(instructions, [*instructions[1:], None], strict=True):
        if each.opname == "STORE_ATTR" and held not in own:
            yield str(each.argval)
        if each.opname in ("COPY", "DUP_TOP") and following is not None and following.opname == "LOAD_ATTR":
            added_to[str(following.argval)] = held
        # What is loaded last is the object; newer versions of Python load two variables at once.
        last: Any = each.argval[-1] if isinstance(each.argval, tuple) and each.argval else each.argval
        if each.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            held = str(last)
        elif each.opname in ("SWAP", "ROT_TWO") and following is not None and following.opname == "STORE_ATTR":
            held = added_to.get(str(following.argval), "")
        else:
            held = ""
    if "setattr" in code.co_names:
        yield from (each for each in code.co_consts if isinstance(each, str) and each.isidentifier())
    if "assign" in code.co_names:
        yield from _RATES.intersection(code.co_names)


def _is_own(callback: object, method: str) -> bool:
    """Whether the callback's method is the script's own: a class's, or a function that it was given."""
    if method in getattr(callback, "__dict__", {}):
        return True
    owner = next((cls for cls in type(callback).__mro__ if method in vars(cls)), None)
    return owner is not None and owner.__module__.partition(".")[0] not in _ONLY_SHOW
