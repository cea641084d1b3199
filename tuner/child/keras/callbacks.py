"""The script's own callbacks of ``Model.fit``: which of them act with every batch, and which set the learning rate."""

from __future__ import annotations

import dis
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import CodeType, FunctionType, MethodType

from ..call_sites import codes, is_library
from ..taken import instructions_of

BATCH_METHODS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_ONLY_SHOW = frozenset({"keras", "tqdm", "wandb", "mlflow", "comet_ml", "neptune", "clearml", "tensorboard", "swanlab"})
"""Packages whose callbacks show or log what they are told with a batch, and change nothing in the training."""
_LIBRARIES = _ONLY_SHOW | {"builtins"}
_RATES = frozenset({"learning_rate", "lr"})
_VARIABLES = ("LOAD_FAST", "LOAD_DEREF")
_INTO_ITEMS = ("STORE_SUBSCR", "COPY", "DUP_TOP_TWO")
_STEP = ("__init__", "build", "call", "compute_loss", "train_step", "test_step", "predict_step")
"""Methods of models that callbacks don't call for what they set."""


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


def stored(callbacks: Iterable[object], models: Iterable[type] = ()) -> dict[str, str]:
    """Attributes that code of the script's own sets on something else than the callback itself, items of them, and
    variables around it, as far as it shows, by the name of the callback; what it calls sets them, too. What
    ``__init__`` sets is there before the training. ``models``: the script's own classes of its model and layers, whose
    methods it may call.
    """
    members = [member for kind in models for member in vars(kind).items()]
    methods = [(name, member) for name, member in members if isinstance(member, FunctionType)]
    found: dict[str, str] = {}
    for callback in callbacks:
        named = set[str]()
        for function, own in _own_functions(callback):
            for code in codes(function.__code__):
                named.update(code.co_names)
                given = _given(callback, code) if "setattr" in code.co_names else ()
                found.update(dict.fromkeys([*_stored_in(code, own), *given], type(callback).__name__))
        found.update(dict.fromkeys(_set_by(methods, named), type(callback).__name__))
    return found


def _set_by(methods: Sequence[tuple[str, FunctionType]], named: Collection[str]) -> Iterator[str]:
    """Attributes that those of the methods set that are named, and those that they call; not what the step's set."""
    known, waiting = {*_STEP}, set(named)
    while waiting:
        called = [function for name, function in methods if name in waiting - known]
        known |= waiting
        reached = [code for function in called for code in codes(function.__code__)]
        waiting = {name for code in reached for name in code.co_names} - known
        yield from (name for code in reached for name in _stored_in(code, ()))


def lowers_rate(callbacks: Iterable[object]) -> bool:
    """Whether one of them multiplies the learning rate that it finds."""
    return any("ReduceLROnPlateau" in type(callback).__name__ for callback in callbacks)


def _own_functions(callback: object) -> Iterator[tuple[FunctionType, Collection[str]]]:
    """The methods of the script's own classes, the functions that the callback was given, and the script's functions
    that these name; each with the names by which it knows the callback.
    """
    owners = [cls for cls in type(callback).__mro__ if cls.__module__.partition(".")[0] not in _LIBRARIES]
    functions = [value for cls in owners for name, value in vars(cls).items() if name != "__init__"]
    for function in (*functions, *getattr(callback, "__dict__", {}).values()):
        plain = function.__func__ if isinstance(function, (MethodType, staticmethod, classmethod)) else function
        if isinstance(plain, FunctionType):
            of_another = isinstance(function, MethodType) and function.__self__ is not callback  # LambdaCallback's
            is_scripts = of_another and not is_library(plain.__code__.co_filename)
            yield plain, () if is_scripts else {"self", *plain.__code__.co_varnames[:1]}
            held = plain.__globals__
            named = dict.fromkeys(name for code in codes(plain.__code__) for name in code.co_names)
            for other in (held.get(name) for name in named):
                if isinstance(other, FunctionType) and not is_library(other.__code__.co_filename):
                    yield other, ()


def _given(callback: object, code: CodeType) -> Iterator[str]:
    """Names that the callback keeps in attributes which a code reads, and may set by."""
    held = getattr(callback, "__dict__", {})
    yield from (value for name in code.co_names if isinstance(value := held.get(name), str) and value.isidentifier())


def _stored_in(code: CodeType, own: Collection[str]) -> Iterator[str]:
    """``own``: the names of what isn't told of; a function within a method knows the callback by its name alone."""
    held = ""
    instructions = instructions_of(code)
    added_to: dict[str, str] = {}  # what ``self.count += 1`` sets it on is loaded, and copied, first
    for each, following in zip(instructions, [*instructions[1:], None], strict=True):
        of_others = each.opname == "STORE_DEREF" and each.argval in code.co_freevars
        if of_others or each.opname == "STORE_GLOBAL" or (each.opname == "STORE_ATTR" and held not in own):
            yield str(each.argval)
        if each.opname in ("COPY", "DUP_TOP") and following is not None and following.opname == "LOAD_ATTR":
            added_to[str(following.argval)] = held
        if each.opname.startswith(_VARIABLES):
            held = str(each.argval)
        elif each.opname in ("SWAP", "ROT_TWO") and following is not None and following.opname == "STORE_ATTR":
            held = added_to.get(str(following.argval), "")
        else:
            held = ""
    yield from _items_stored_in(instructions, own)
    if "setattr" in code.co_names:
        yield from (each for each in code.co_consts if isinstance(each, str) and each.isidentifier())
    if "assign" in code.co_names:
        yield from _RATES.intersection(code.co_names)


def _items_stored_in(instructions: Sequence[dis.Instruction], own: Collection[str]) -> Iterator[str]:
    """Attributes of others, and globals, of which a code sets an item: ``self.model.shares["kl"] = 0.5``, or ``+=``."""
    for holder, key, sets in zip(*(instructions[place:] for place in range(3)), strict=False):
        if holder.opname == "LOAD_GLOBAL" and key.opname.startswith("LOAD_") and sets.opname in _INTO_ITEMS:
            yield str(holder.argval)
    for holder, attribute, key, sets in zip(*(instructions[place:] for place in range(4)), strict=False):
        is_own = holder.opname.startswith(_VARIABLES) and str(holder.argval) in own
        into = sets.opname in _INTO_ITEMS and key.opname.startswith("LOAD_")
        if attribute.opname == "LOAD_ATTR" and into and not is_own:
            yield str(attribute.argval)


def _is_own(callback: object, method: str) -> bool:
    """Whether the callback's method is the script's own: a class's, or a function that it was given."""
    if method in getattr(callback, "__dict__", {}):
        return True
    owner = next((cls for cls in type(callback).__mro__ if method in vars(cls)), None)
    return owner is not None and owner.__module__.partition(".")[0] not in _ONLY_SHOW
