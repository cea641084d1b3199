"""A traced loss in segments whose operations the backward computes again: only what lies between them is kept.

One checkpoint around a whole loss spares nothing: what is computed again takes at once what it had taken. So the trace
is cut where little is alive, and each segment but the last gets a ``jax.checkpoint`` of its own (Chen et al. 2016,
"Training deep nets with sublinear memory cost"). A long ``lax.scan`` keeps what it carries from turn to turn, and
computes its body again. Nothing is known of the model: the trace holds the operations of every library.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .types import Call

CALLS = frozenset({"jit", "pjit"})
"""JAX's names for operations that only call others."""
LOOP = "scan"
SEGMENT, TURN = "computed_by_segments", "computed_by_turns"
"""What XLA's programs call operations that may be computed again: those of segments, and of a loop's body."""
DROPPED = "DropVar"
"""The class of what nothing reads, which not every version of JAX has in public."""
LARGE = 1 / 16
"""A call that computes such a share of all is opened: the loss may be cut within it."""
MOST_SEGMENTS = 16
LEAST_SPARED = 1 / 4
"""Of what is kept, by the estimate: for less, nothing is computed again."""

Atom = Any
"""What an operation is given: the number of a value, or one of JAX's literals."""
Equation = Any
Closed = Any
"""A ``ClosedJaxpr``: equations, what they are given and give, and constants."""
Values = dict[int, Any]


@dataclass(frozen=True)
class Operation:
    """An equation of JAX's. ``reads``: what it is given; ``writes``: the numbers of what it gives.

    ``size``: bytes that the backward keeps of it; ``size_again``: of a loop whose body is computed again, else 0.
    """

    equation: Equation
    reads: tuple[Atom, ...]
    writes: tuple[int, ...]
    size: float
    size_again: float = 0.0

    @property
    def is_long(self) -> bool:
        """Whether it is a loop that is worth it to compute its body again."""
        return 0 < self.size_again <= (1 - LEAST_SPARED) * self.size


@dataclass(frozen=True)
class Segmented:
    """``run``: takes the inputs of the trace, and gives its results. ``segments``, ``loops``: what is computed again.

    ``kept``, ``kept_as_written``: bytes for the backward, by the estimate.
    """

    run: Callable[..., list[Any]]
    segments: int
    loops: int
    kept: float
    kept_as_written: float


class Library:
    """What is used of JAX, unpatched. Raises ``AttributeError`` or ``ImportError`` where a version has less."""

    def __init__(self, jax: Any) -> None:
        from jax.extend import core

        self.barrier: Call = jax.lax.optimization_barrier
        self.checkpoint: Call = jax.checkpoint
        self.scan: Call = jax.lax.scan
        self.trace: Call = jax.make_jaxpr
        self.scope: Call = jax.named_scope
        self._closed: Call = core.ClosedJaxpr
        self._as_function: Call = core.jaxpr_as_fun

    def function(self, closed: Closed) -> Callable[..., list[Any]]:
        """A trace as a function of its inputs."""
        made: Callable[..., list[Any]] = self._as_function(closed)
        return made

    def compute(self, jaxpr: Any, operation: Operation, known: Values) -> None:
        """Adds to the ``known`` values what an operation of this trace gives."""
        equation, named = operation.equation, jaxpr.debug_info
        variables = zip(equation.invars, operation.reads, strict=True)
        given = {variable: value_of(atom, known) for variable, atom in variables if not is_literal(variable)}
        gives = {
            variable: number
            for variable, number in zip(equation.outvars, operation.writes, strict=True)
            if type(variable).__name__ != DROPPED
        }
        nameless = getattr(named, "with_unknown_names", lambda: named)()
        made = jaxpr.replace(
            constvars=[], invars=list(given), outvars=list(gives), eqns=[equation], debug_info=nameless
        )
        known.update(zip(gives.values(), self.function(self._closed(made, ()))(*given.values()), strict=True))

    def compute_again(self, operation: Operation, known: Values) -> None:
        """The same of a loop, whose body the backward computes again."""
        params = operation.equation.params
        values = [value_of(atom, known) for atom in operation.reads]
        fixed, count = _parts_of(params)
        consts, carry, of_turns = values[:fixed], values[fixed : fixed + count], values[fixed + count :]
        body = self.function(params["jaxpr"])

        def turn(carry: list[Any], own: list[Any]) -> tuple[list[Any], list[Any]]:
            with self.scope(TURN):
                made = body(*consts, *carry, *own)
            return made[:count], made[count:]

        again = self.checkpoint(turn, prevent_cse=False)  # XLA merges nothing across two loops
        how = {name: params[name] for name in ("length", "reverse", "unroll")}
        carried, gathered = self.scan(again, carry, of_turns, **how)
        known.update(zip(operation.writes, (*carried, *gathered), strict=True))


def in_segments(library: Library, closed: Closed) -> Segmented | None:
    """The function of a trace, in segments; None where too little is spared by them."""
    flat = Flat(closed)
    operations = flat.operations
    as_written = sum(each.size for each in operations)
    places, kept = chosen(operations, flat.results)
    parts = [operations[start:stop] for start, stop in itertools.pairwise(places)]
    loops = sum(each.is_long for each in operations)
    if kept > (1 - LEAST_SPARED) * as_written or len(parts) + loops < 2:
        return None
    ends = _last_reads(operations, flat.results)
    again = [part is not parts[-1] and not part[0].is_long for part in parts]

    def run(*given: Any) -> list[Any]:
        known: Values = {**flat.consts, **dict(zip(flat.given, given, strict=True))}
        for part, stop, is_again in zip(parts, places[1:], again, strict=True):
            if part[0].is_long:
                library.compute_again(part[0], known)
                continue
            made = {number for operation in part for number in operation.writes}
            reads = {atom for operation in part for atom in operation.reads if not is_literal(atom)}
            gives = [number for number in made if ends.get(number, -1) >= stop]
            compute = partial(_computed, library, closed.jaxpr, part, gives)
            needed = {number: known[number] for number in reads - made}
            known.update((library.checkpoint(compute) if is_again else compute)(needed))
        return [value_of(atom, known) for atom in flat.results]

    return Segmented(run, sum(again), loops, kept, as_written)


def _computed(
    library: Library, jaxpr: Any, part: Iterable[Operation], gives: Iterable[int], values: Values
) -> Values:  # fmt: skip
    """What some operations give, of these values."""
    known = dict(values)
    with library.scope(SEGMENT):
        for operation in part:
            library.compute(jaxpr, operation, known)
    return {number: known[number] for number in gives}


class Flat:
    """A trace's operations in one row, with those of large calls in place of these.

    ``given``, ``results``: the numbers of its inputs, and what it gives; ``consts``: number → constant.
    """

    def __init__(self, closed: Closed) -> None:
        self.operations: list[Operation] = []
        self.consts: Values = {}
        self._numbers = itertools.count()
        self._large = LARGE * taken_by(closed.jaxpr.eqns)
        self.given = [next(self._numbers) for _ in closed.jaxpr.invars]
        self.results = self._walk(closed, self.given)

    def _walk(self, closed: Closed, given: Sequence[Atom]) -> list[Atom]:
        """Takes over the operations of a trace that is given these; what it gives."""
        jaxpr = closed.jaxpr
        atoms: dict[Any, Atom] = dict(zip(jaxpr.invars, given, strict=True))
        for variable, value in zip(jaxpr.constvars, closed.consts, strict=True):
            atoms[variable] = number = next(self._numbers)
            self.consts[number] = value
        for equation in jaxpr.eqns:
            reads = [each if is_literal(each) else atoms[each] for each in equation.invars]
            if _is_open(equation) and _size(equation) > self._large:
                gives = self._walk(equation.params["jaxpr"], reads)
            else:
                gives = [next(self._numbers) for _ in equation.outvars]
                again = _size_again(equation) if equation.primitive.name == LOOP else 0.0
                self.operations.append(Operation(equation, tuple(reads), tuple(gives), _size(equation), again))
            atoms.update(zip(equation.outvars, gives, strict=True))
        return [each if is_literal(each) else atoms[each] for each in jaxpr.outvars]


def chosen(operations: Sequence[Operation], results: Iterable[Atom]) -> tuple[list[int], float]:
    """Where to cut, the start and the end included, so that least is kept, and how many bytes that is, estimated.

    A loop whose body is computed again is a segment by itself.
    """
    around = {place for number, each in enumerate(operations) if each.is_long for place in (number, number + 1)}
    sizes = [each.size_again if each.is_long else each.size for each in operations]
    alive = _alive(operations, results)
    best: tuple[list[int], float] = ([0, len(operations)], math.inf)
    for count in range(1, MOST_SEGMENTS + 1):
        places = sorted({0, *around, *_places(sizes, alive, count), len(operations)})
        largest = max((sum(sizes[start:stop]) for start, stop in itertools.pairwise(places)), default=0.0)
        kept = sum(alive[place] for place in places) + largest
        if kept < best[1]:
            best = places, kept
    return best


def _places(sizes: Sequence[float], alive: Sequence[float], count: int) -> list[int]:
    """Cuts for segments of about as many bytes each: as near to that as little is alive."""
    total, before = sum(sizes) or 1.0, list(itertools.accumulate(sizes, initial=0.0))
    places = []
    for number in range(1, count):
        reach = [place for place in range(len(sizes)) if abs(before[place] * count / total - number) <= 1 / 2]
        if reach:
            places.append(min(reach, key=lambda place: alive[place]))
    return places


def _alive(operations: Sequence[Operation], results: Iterable[Atom]) -> list[float]:
    """Before each operation, and behind the last: bytes of what was computed and is still needed."""
    ends, changes = _last_reads(operations, results), [0.0] * (len(operations) + 2)
    for number, operation in enumerate(operations):
        for variable, written in zip(operation.equation.outvars, operation.writes, strict=True):
            end = ends.get(written, -1)
            if end > number:
                changes[number + 1] += bytes_of(variable.aval)
                changes[end + 1] -= bytes_of(variable.aval)
    return list(itertools.accumulate(changes[: len(operations) + 1]))


def _last_reads(operations: Sequence[Operation], results: Iterable[Atom]) -> dict[int, int]:
    """The number of a value → that of the last operation that reads it; of a result one more than there are."""
    reads = {atom: at for at, each in enumerate(operations) for atom in each.reads if not is_literal(atom)}
    return reads | {atom: len(operations) for atom in results if not is_literal(atom)}


# what is in a trace


def taken_by(equations: Iterable[Equation]) -> float:
    """Bytes of all that they compute: about what is kept for the backward."""
    return sum(map(_size, equations))


def _size(equation: Equation) -> float:
    made = float(sum(bytes_of(each.aval) for each in equation.outvars))
    times = equation.params["length"] if equation.primitive.name == LOOP else 1
    return max(made, times * _inner(equation))


def _size_again(loop: Equation) -> float:
    """Of a loop whose body is computed again: what it carries in each turn, all that it gives, and one body."""
    params = loop.params
    if params.get("_split_transpose"):
        return math.inf
    carried = sum(map(bytes_of, params["jaxpr"].out_avals[: _parts_of(params)[1]]))
    return float(params["length"] * carried + sum(bytes_of(each.aval) for each in loop.outvars) + _inner(loop))


def _parts_of(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many of a loop's inputs stay the same in all turns, and how many are carried: JAX 0.12 has them in groups."""
    if "ft_in" not in params:
        return params["num_consts"], params["num_carry"]
    constant, carried, _ = params["ft_in"].unpack()
    return len(list(constant)), len(list(carried))


def _inner(equation: Equation) -> float:
    """What the operations within a call or a loop compute; 0 of all others."""
    return taken_by(equation.params["jaxpr"].jaxpr.eqns) if equation.primitive.name in CALLS | {LOOP} else 0.0


def _is_open(equation: Equation) -> bool:
    """Whether it is a call that asks for nothing: the operations in it may stand in its place."""
    params = equation.params
    asked = (*params.get("in_shardings", ()), *params.get("out_shardings", ()))
    return equation.primitive.name in CALLS and all("Unspecified" in type(each).__name__ for each in asked)


def is_literal(atom: Any) -> bool:
    return hasattr(atom, "val")


def value_of(atom: Atom, known: Values) -> Any:
    return atom.val if is_literal(atom) else known[atom]


def bytes_of(aval: Any) -> int:
    return math.prod(getattr(aval, "shape", ())) * int(getattr(getattr(aval, "dtype", None), "itemsize", 4))
