"""Values of a trace that has ended and that something still holds: an attribute, a cache, a rule that closes over some.

Where a loss is traced by itself, within the trace of a compiled function, they are dead, while as written they belong
to that function's trace, and the script may go on with them. So they are made values of that one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from typing import Any

from .segments import Closed, Library, Operation, Values, is_literal, value_of


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
    around = [getattr(leaf, "primal", None) for leaf in leaves]
    around += [each for each in closed.consts if issubclass(type(each), tracer)]
    atoms = [getattr(each, "val", None) for each in held]
    return all(type(each) is kind for each in around) and all(is_literal(each) or each in known for each in atoms)


def computed(library: Library, closed: Closed, held: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    """What a trace gives, of these ``leaves``. What is ``held`` of it are values of the trace around from then on.

    But for what is differentiated: that is dead, as it is as written once its gradient is taken.
    """
    jaxpr, differentiating = closed.jaxpr, leaves[0]._trace
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
