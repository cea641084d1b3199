"""Values of a trace that has ended and that something still holds: an attribute, a cache, a rule that closes over some.

Where a loss is traced by itself, within the trace of a compiled function, they are dead, while as written they belong
to that function's trace, and the script may go on with them. So they are made values of that one.
"""

from __future__ import annotations

import gc
import itertools
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from .segments import Closed, Library, Operation, Values, is_literal, value_of
from .types import Call


def held_of(trace: object, tracer: type) -> list[Any]:
    """All values of a trace that anything holds; none where the trace itself is gone. ``tracer``: JAX's class."""
    if trace is None:
        return []
    gc.collect()
    return [each for each in gc.get_objects() if issubclass(type(each), tracer) and each._trace is trace]


def can_go_on(closed: Closed, held: Sequence[Any], leaves: Sequence[Any], tracer: type) -> bool:
    """Whether what is held can be made values of the trace around, in which these ``leaves`` are differentiated.

    So it is where that is a compiled function's, without ``vmap`` or other gradients in between.
    """
    jaxpr, kind = closed.jaxpr, type(held[0])
    known = {*jaxpr.invars, *jaxpr.constvars, *(each for equation in jaxpr.eqns for each in equation.outvars)}
    around = [getattr(leaf, "primal", leaf) for leaf in leaves]  # of integers JAX takes no gradient
    around += [each for each in closed.consts if issubclass(type(each), tracer)]
    atoms = [getattr(each, "val", None) for each in held]
    return all(type(each) is kind for each in around) and all(is_literal(each) or each in known for each in atoms)


def comes_again(library: Library, function: Call, closed: Closed, leaves: Sequence[Any]) -> bool:
    """Whether a function, of which this is the trace, gives the same one when it is called again: it neither counts
    nor goes on with what it has left elsewhere.
    """

    def anew(*given: Any) -> Any:
        return function(*given)  # a function of its own: JAX keeps what it has traced, by the function

    try:
        again = library.trace(anew)(*leaves)
    except Exception:
        return False
    one, other = (re.sub(" at 0x[0-9a-f]+", "", str(each.jaxpr)) for each in (closed, again))
    return one == other and all(itertools.starmap(_is_same, zip(closed.consts, again.consts, strict=True)))


def _is_same(one: Any, other: Any) -> bool:
    """Whether two constants are, of which one may be a value of the trace around."""
    if one is other:
        return True
    numpy = sys.modules["numpy"]
    with suppress(Exception):
        return one.dtype == other.dtype and bool(numpy.array_equal(numpy.asarray(one), numpy.asarray(other)))
    return False


def computed(library: Library, closed: Closed, held: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    """What a trace gives, of these ``leaves``. What is ``held`` of it are values of the trace around from then on.

    But for what is differentiated: that is dead, as it is as written once its gradient is taken.
    """
    jaxpr, differentiating = closed.jaxpr, next((leaf._trace for leaf in leaves if hasattr(leaf, "primal")), None)
    known: Values = dict(zip((*jaxpr.invars, *jaxpr.constvars), (*leaves, *closed.consts), strict=True))
    waiting: dict[int, list[Any]] = {}
    for each in held:
        waiting.setdefault(id(each.val), []).append(each)

    def go_on(atoms: Iterable[Any]) -> None:
        for atom in atoms:
            for each in waiting.pop(id(atom), ()):
                value = value_of(atom, known)
                if not hasattr(value, "_trace"):
                    value = library.barrier(value)  # a constant: the operation gives a value of the trace around
                if value._trace is not differentiating:
                    _become(each, value)

    go_on([each.val for each in held if is_literal(each.val) or each.val in known])
    for equation in jaxpr.eqns:  # one by one: the rule of a later one may close over what is held
        library.compute(jaxpr, Operation(equation, tuple(equation.invars), tuple(equation.outvars), 0.0), known)
        go_on(equation.outvars)
    return [value_of(atom, known) for atom in jaxpr.outvars]


def _become(held: Any, value: Any) -> None:
    """Makes a value another one of the same class, for whoever holds it."""
    for kind in type(held).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if not name.startswith("__"):
                setattr(held, name, getattr(value, name))
