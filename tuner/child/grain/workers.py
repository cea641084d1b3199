"""Whether processes may read a Grain pipeline's data that the script reads in its own, or in another number of them.

Grain starts its workers anew ("spawn") and sends them the pipeline: the code of the script's own main module by value,
with what it names, that of other modules by name. So they are never forked beside JAX's threads. But a script has to
let itself be imported, its data to be sent, and what they draw or change mustn't be the process's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..call_sites import codes, is_library
from ..data_state import values
from ..taken import instructions_of
from ..torch import starting
from ..torch.copies import COUNTS, OWN, beside, own_generator
from ..torch.counting import counted_up
from ..torch.imported import set_since
from ..torch.reached import functions, variables_in

READING = (
    "__getitem__", "_getitems", "__call__", "__iter__", "__next__", "map", "random_map", "np_random_map",
    "map_with_index", "filter", "flat_map",
)  # fmt: skip
"""Methods by which data are read and transformed."""
DRAWS = "{} draws random numbers of the process, which are others in each worker"
CALLS_JAX = "its data call JAX, which each worker would start beside the training's"
DRAWS_HERE = "{} draws random numbers of the process, of which another thread would draw at other times"
OWN_HERE = "{} draws random numbers of its own: ahead, and so others once an epoch is broken off"
SET_OTHERWISE = "its data call JAX, which may be set otherwise in another thread"
_ANEW = "its workers are started anew"
_MAKING = ("default_rng", "Generator", "Philox", "PCG64", "MT19937", "SeedSequence", "RandomState", "Random")
"""What makes a generator of its own, seeded by the script or by nobody."""
_DRAWING = ("rand", "uniform_", "normal", "bernoulli", "multinomial", "exponential_")
"""Beginnings of the names by which PyTorch and TensorFlow draw."""


def why_drawn(parts: Mapping[str, object]) -> str:
    """Why no other number of workers draws what the script's own does; "" where nothing shows that."""
    try:
        drawn, counter = _drawn(parts), counted_up(parts, READING)
        generator = "" if drawn else own_generator(parts) or own_generator(beside(parts, READING))
    except Exception as error:  # the user's own classes may raise anything
        return f"its data can't be looked into: {type(error).__name__}"
    if counter:
        return COUNTS.format(counter)
    return DRAWS.format(drawn) if drawn else OWN.format(generator) if generator else ""


def copied(parts: Mapping[str, object]) -> Mapping[str, object]:
    """What each worker has a copy of: the data, and what their code names beside them."""
    return {**parts, **beside(parts, READING)}


def why_none(parts: Mapping[str, object], pipeline: object) -> str:
    """Why workers can't be added to what has none; "" where they can. ``pipeline``: what they would be sent."""
    why = starting.why_unimportable().removeprefix(f"{starting.NO_FORK}, and ")
    return why or _why_otherwise(parts) or _why_unsendable(parts, pipeline)


def why_here(parts: Mapping[str, object]) -> str:
    """Why no other thread of this process may make the batches; "" where nothing shows that."""
    try:
        drawn, generator = _drawn(parts), own_generator(parts) or own_generator(beside(parts, READING))
        calls_jax = any(map(_is_jax, _named(parts)))
    except Exception as error:  # as above
        return f"its data can't be looked into: {type(error).__name__}"
    if drawn:
        return DRAWS_HERE.format(drawn)
    return OWN_HERE.format(generator) if generator else SET_OTHERWISE if calls_jax else ""


def _why_otherwise(parts: Mapping[str, object]) -> str:
    try:
        if any(map(_is_jax, _named(parts))):
            return CALLS_JAX
        name = set_since(parts, READING, sent="__main__")
    except Exception:  # as above
        name = "what its data hold"
    return f"{_ANEW}, and may not have {name} as the script has set it" if name else ""


def _why_unsendable(parts: Mapping[str, object], pipeline: object) -> str:
    size = 0
    for _, value, _ in values(parts):
        size += int(getattr(value, "nbytes", 0)) if type(value).__module__ in ("numpy", "torch") else 0
    if size <= starting.MOST_BYTES:
        try:
            size = len(sys.modules["cloudpickle"].dumps(pipeline))
        except Exception as error:  # as above
            said = (str(error).strip().splitlines() or [""])[0][:80]
            return f"{_ANEW}, and can't be sent its data: {type(error).__name__}: {said}"
    if size > starting.MOST_BYTES:
        return f"{_ANEW}, and are sent a copy of the data: over {starting.MOST_BYTES >> 20} MiB each"
    return ""


def _drawn(parts: Mapping[str, object]) -> str:
    """A function of the data's that draws from a generator of the process, by what it names; "" where none is seen."""
    for function in _reading(parts):
        for code in codes(function.__code__):
            if _draws(code, function.__globals__):
                return function.__qualname__
    return ""


def _draws(code: CodeType, held: Mapping[str, object]) -> bool:
    """Whether a code takes anything of ``random``, ``numpy.random`` and their like but what makes a generator."""
    steps = [each for each in instructions_of(code) if each.opname != "PUSH_NULL"]
    for place, each in enumerate(steps):
        if each.opname == "IMPORT_NAME" and str(each.argval) in ("random", "numpy.random"):
            return True
        value = held.get(str(each.argval)) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME") else None
        if value is None:
            continue
        after = [str(x.argval) if "ATTR" in x.opname or "METHOD" in x.opname else "" for x in steps[place + 1 :][:2]]
        name = value.__name__ if isinstance(value, ModuleType) else ""
        if name == "numpy" and after[0] == "random":
            name, after = "numpy.random", after[1:]
        if name in ("random", "numpy.random") and after[0] not in _MAKING:
            return True
        if name in ("torch", "tensorflow") and any(x.startswith(_DRAWING) for x in code.co_names):
            return True
        if type(getattr(value, "__self__", None)).__name__ in ("Random", "RandomState"):
            return True  # ``from random import randint``
    return False


def _reading(parts: Mapping[str, object]) -> Iterator[FunctionType]:
    """Functions that read the data, but for Grain's own."""
    waiting, seen = [value for _, value, _ in values(parts)], set[FunctionType]()
    while waiting:
        found = [function for function, _ in functions(waiting, READING, variables_in) if function not in seen]
        seen.update(found)
        waiting = [called for function in found for called in _of_modules(function)]
        yield from (each for each in found if str(each.__module__).partition(".")[0] != "grain")


def _of_modules(function: FunctionType) -> Iterator[object]:
    """What it takes of the script's own modules by their names (``augment.crop``)."""
    for code in codes(function.__code__):
        steps = [each for each in instructions_of(code) if each.opname != "PUSH_NULL"]
        for each, after in pairwise(steps):
            value = function.__globals__.get(str(each.argval)) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME") else None
            if isinstance(value, ModuleType) and not is_library(getattr(value, "__file__", None) or ""):
                yield getattr(value, str(after.argval), None)


def _named(parts: Mapping[str, object]) -> Iterator[object]:
    """Every global that these functions name."""
    for function in _reading(parts):
        held = function.__globals__
        yield from (held[name] for name in variables_in(function.__code__) if name in held)


def _is_jax(value: object) -> bool:
    module = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
    of = getattr(value, "__module__", "") if callable(value) else ""
    return any(str(name).partition(".")[0] in ("jax", "jaxlib") for name in (module, of))


@contextmanager
def starting_anew(added: bool) -> Iterator[None]:
    """While it lasts Grain may start workers: ``added`` says whether it is the config that has them.

    Grain asks absl's flags whether to profile them, and absl refuses until the script has parsed its own, which one
    without workers needn't do: Grain's are at their defaults then. On a card JAX takes three quarters of the memory
    with its first operation, in each process.
    """
    if not added:
        yield
        return
    flags = sys.modules["absl.flags"].FLAGS
    if not flags.is_parsed():
        for name in flags:
            if name.startswith("grain_"):
                flags[name].present = True
    had = os.environ.get(starting.AHEAD)
    os.environ.setdefault(starting.AHEAD, "false")
    try:
        yield
    finally:
        if had is None:
            os.environ.pop(starting.AHEAD, None)


def check_state(state: Any, count: int) -> None:
    """Raises ``ValueError`` for where an iterator stood that had another number of workers: Grain goes on from there,
    too, with other samples.
    """
    waiting, held = [json.loads(state) if isinstance(state, bytes) else state], 0
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            held = held or len(each.get("iterators_in_use_states") or ()) or int(each.get("worker_count") or 0)
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    if held != count:
        raise ValueError(f"this is where an iterator with {held} workers stood, and the profile gives it {count}")


def living(iterator: Any) -> int:
    """Worker processes that are alive, and those that Grain has yet to come to: it takes one up with each batch."""
    found = [each._prefetch_process is not None and each._prefetch_process.is_alive() for each in processes(iterator)]
    return sum(found) + sum(map(_to_come, nodes(iterator))) if found else 0


def _to_come(iterator: Any) -> int:
    of_all = iterator._datasets if type(iterator).__name__ == "InterleaveDatasetIterator" else None
    if not isinstance(of_all, list) or any(type(each).__name__ != "ProcessPrefetchIterDataset" for each in of_all):
        return 0
    return len(of_all) - int(iterator._next_index_in_datasets)


def processes(iterator: Any) -> list[Any]:
    """The iterators of a pipeline that have a worker each."""
    return [each for each in nodes(iterator) if type(each).__name__ == "ProcessPrefetchDatasetIterator"]


def nodes(iterator: Any) -> list[Any]:
    """Grain's iterators of a pipeline, as far as they are in this process."""
    found, waiting = list[Any](), [iterator]
    while waiting:
        each = waiting.pop()
        if each is None or any(each is other for other in found):
            continue
        found.append(each)
        waiting += [getattr(each, "_iterator", None), getattr(each, "_maybe_nonnative_parent", None)]
        waiting += [*getattr(each, "_parents", ()), *getattr(each, "_iterators_in_use", ())]
    return found
