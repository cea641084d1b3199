"""What each trace of a function holds: gradients, updates, how many steps a call takes. JAX traces once.

A trace belongs to a signature: shapes, structures and static arguments. What JAX has kept of it (also where the
function is called within another one) shows nothing any more, so it is remembered here. Of a trace that is under way
nothing is held but by its own frame, which ends with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import prod
from typing import Any

from .rows import may_choose
from .types import Arguments, Aval, Keywords, Leaves, Place, aval_of, leaves_at, members_of, places_of, shape_of

MOST_SIGNATURES = 512
MOST_LEAVES = 64
"""Of what is differentiated so many arrays are followed to where they come from."""
MOST_OPERATIONS = 2000
Flatten = Callable[[Any], tuple[list[Any], Any]]
"""The leaves of a structure, and the structure."""


@dataclass
class Trace:
    """What one trace holds.

    ``gradients``, ``updates``: how many. ``steps``: those that a call takes; ``passes``: gradients that it takes at the
    first place with one; 0 where nobody knows how often a loop of JAX's runs. ``parts``: batches of an update
    (``optax.MultiSteps``); 0 where that changes. ``is_in_loop``: whether a gradient is taken in such a loop.
    ``is_in_branch``: whether an update is one branch of several. ``parameters``: shapes of what is differentiated.
    ``places``: arguments that are differentiated as they are; ``sources``: and those that it is computed of;
    ``is_derived``: whether some of it is computed of nothing that is known. ``loss``: the number of the loss among the
    results' leaves; None where none is seen. ``whole``: arguments that a gradient is given as they are, beside what is
    differentiated, and nothing that could choose parts of them. ``passed``: arguments that are results as they were, by
    the numbers of the results. ``members``: so many models are trained at once (``vmap``), each on rows of its own, for
    which the data have a dimension in front. ``beside``: arguments that a gradient is given, or closes over, besides.
    ``weights``: of each gradient what it is taken of, or that is computed of, as far as no gradient before it is.
    """

    gradients: int = 0
    updates: int = 0
    steps: int = 1
    passes: int = 1
    parts: int = 1
    is_in_loop: bool = False
    is_in_branch: bool = False
    parameters: set[Aval] = field(default_factory=set)
    places: list[Place] = field(default_factory=list)
    sources: set[Place] = field(default_factory=set)
    is_derived: bool = False
    loss: int | None = None
    loss_is_known: bool = False
    whole: set[Place] = field(default_factory=set)
    passed: dict[int, Place] = field(default_factory=dict)
    members: int = 0
    beside: set[Place] = field(default_factory=set)
    weights: list[tuple[Place, ...]] = field(default_factory=list)
    site: str = ""

    @property
    def trains(self) -> bool:
        """Whether a call of it is a part of a training step."""
        return self.gradients > 0 or self.updates > 0

    @property
    def holds_any(self) -> bool:
        """Whether anything was seen in it."""
        return self.trains or self.parts != 1

    def is_as(self, other: Trace) -> bool:
        """Whether a call of the one is to be counted as a call of the other."""
        return self._key == other._key

    @property
    def _key(self) -> tuple[object, ...]:
        kinds = self.gradients > 0, self.updates > 0, self.is_in_loop, self.is_in_branch, self.is_derived, self.members
        return *kinds, self.steps, self.passes, self.parts, self.places, self.sources, self.loss, self.site

    def loss_of(self, leaves: Sequence[Any]) -> Any:
        """The loss among a call's results; None where none is seen."""
        return leaves[self.loss] if self.loss is not None and self.loss < len(leaves) else None


class Traces:
    """Of one function. ``count``: those that were of a training step. ``statics``: arguments that it is compiled for.

    ``misses``: calls of which nobody knows which one of several different traces JAX took.
    """

    def __init__(self, flatten: Flatten) -> None:
        self._flatten = flatten
        self._of: dict[Hashable, Trace] = {}
        self._newest: Trace | None = None
        self._are_alike = True
        self.statics: set[int | str] = set()
        self.count = 0
        self.misses = 0

    def put(self, args: Arguments, kwargs: Keywords, trace: Trace) -> None:
        """A trace that such a call has brought about."""
        if self._newest is not None and not self._newest.is_as(trace):
            self._are_alike = False
        self._newest = trace
        self.count += trace.trains
        if len(self._of) >= MOST_SIGNATURES:
            del self._of[next(iter(self._of))]
        self._of[self._signature(args, kwargs)] = trace

    def find(self, args: Arguments, kwargs: Keywords) -> Trace | None:
        """The trace that JAX has kept for such a call; None where none is known."""
        if self._newest is None or self._are_alike:
            return self._newest
        return self._of.get(self._signature(args, kwargs))

    def knows(self, args: Arguments, kwargs: Keywords) -> bool:
        """Whether the trace of such a call is known, and was of a training step: another one would be, too."""
        known = self._of.get(self._signature(args, kwargs)) if self._of else None
        return known is not None and known.trains

    def kept(self, args: Arguments, kwargs: Keywords) -> Trace:
        """The trace that a call took which brought about none."""
        found = self.find(args, kwargs)
        if found is None and self._newest is not None:
            self.misses += 1  # known to JAX, by another name than here
            return self._newest
        return found or Trace()

    def any(self, what: Callable[[Trace], object]) -> bool:
        """Whether that is so of any trace."""
        return any(what(trace) for trace in self._of.values())

    @property
    def parameters(self) -> set[Aval]:
        """Shapes of what is differentiated in any of them."""
        return {aval for trace in self._of.values() for aval in trace.parameters}

    def _signature(self, args: Arguments, kwargs: Keywords) -> Hashable:
        """What JAX tells traces apart by, as far as it is needed; it keeps nothing alive."""
        return (
            *(self._kind_of(value, number in self.statics) for number, value in enumerate(args)),
            *((name, self._kind_of(kwargs[name], name in self.statics)) for name in sorted(kwargs)),
        )

    def _kind_of(self, value: Any, is_static: bool) -> Hashable:
        if is_static:
            return type(value).__qualname__, _hash_of(value)
        leaves, structure = self._flatten(value)
        return _hash_of(structure), tuple(map(_kind_of_leaf, leaves))


def _kind_of_leaf(leaf: Any) -> Hashable:
    """JAX goes by types, too, but takes NumPy's wide ones for its own narrow ones."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return leaf.shape, getattr(leaf.dtype, "kind", str(leaf.dtype))
    return type(leaf).__name__


def _hash_of(value: object) -> object:
    try:
        return hash(value)
    except TypeError:
        return None


class Frame:
    """A call under way that may trace a function, within others. ``trace``: what was seen of it.

    ``repeats``: how often a call runs the function, a loop's body; 0 where nobody knows; 1 if it is no loop's.
    ``carry``: the argument that such a body is given of what it gave before. ``is_run``: whether the function is run,
    too. ``is_traced``: whether JAX traced it. ``is_whole``: whether it is through with that.
    """

    def __init__(
        self, function: object, leaves: Leaves, args: Arguments, kwargs: Keywords, *, repeats: int = 1,
        carry: int | None = None, is_branch: bool = False, is_run: bool = True,
    ) -> None:  # fmt: skip
        self.function = function
        self.args, self.kwargs = args, kwargs
        self.repeats, self.carry, self.is_branch, self.is_run = repeats, carry, is_branch, is_run
        self.trace = Trace()
        self.is_traced = self.is_whole = False
        self.outer_differentiates = 0
        self._leaves = leaves
        self._given: dict[int, Place] = {}
        self._shapes: dict[Place, tuple[int, ...]] = {}
        self._level: object = None
        self._closed_over: list[Any] = []
        self._around: list[list[Any]] = []
        self._value: Callable[[], Any] | None = None

    # the trace

    def begins(self, args: Arguments, kwargs: Keywords) -> None:
        """JAX traces the function, with these stand-ins for its arguments."""
        self.trace, self.is_traced, self._closed_over = Trace(), True, []
        self.is_whole, self._around = False, []
        found = [(id(leaf), place, leaf) for place, leaf in places_of(self._leaves, args, kwargs)]
        self._given = {number: place for number, place, _ in found}
        self._shapes = {place: shape_of(leaf) for _, place, leaf in found}
        self._level = next((leaf._trace for _, _, leaf in found if getattr(leaf, "_trace", None) is not None), None)

    def ends(self, paths: Sequence[tuple[Any, Any]], place_of: Callable[[Any, Any], int | None]) -> None:
        """With this result, by leaves and their paths."""
        self.is_whole = True
        leaves = ((number, self._given.get(id(leaf))) for number, (_, leaf) in enumerate(paths))
        self.trace.passed = {number: place for number, place in leaves if place is not None}
        if self.trace.gradients and self._gives_less([leaf for _, leaf in paths]):
            self.trace = Trace(passed=self.trace.passed)
        elif self.trace.gradients:
            self.trace.loss = place_of(None if self._value is None else self._value(), paths)
            self.trace.loss_is_known = True

    def _gives_less(self, results: Iterable[Any]) -> bool:
        """Whether no result can be a gradient, or what one has changed: all are smaller than what is differentiated.

        Such as a loss in which the derivatives of a network by its inputs stand, where it is only looked at. Traced for
        a part of what it is given (``jax.pmap``, ``shard_map``), it may give parts of a gradient.
        """
        trace, given = self.trace, places_of(self._leaves, self.args, self.kwargs)
        in_parts = any(self._shapes.get(place, shape_of(leaf)) != shape_of(leaf) for place, leaf in given)
        sizes = [prod(shape_of(leaf)) for leaf in (*self.given_at(trace.places), *self._closed_over)]
        is_known = bool(sizes) and not (in_parts or trace.updates or trace.is_in_loop)
        return is_known and max((prod(shape_of(leaf)) for leaf in results), default=0) < min(sizes)

    def is_left(self) -> None:
        """The function has returned, or raised: nothing of its trace is held."""
        self._given, self._level, self._value = {}, None, None

    # what is in it

    def differentiated(self, values: Iterable[Any], others: Sequence[Any], around: Sequence[Any]) -> None:
        """A gradient is taken with respect to these arrays; ``others``: else given, ``around``: closed over."""
        leaves = [leaf for leaf in values if shape_of(leaf) or hasattr(leaf, "aval")]
        if self._is_of_others(leaves):
            self.trace.steps = 1
        self.trace.gradients += 1
        self.trace.parameters.update(aval_of(leaf) for leaf in leaves if shape_of(leaf))
        self._follow(leaves[:MOST_LEAVES], direct=True)
        self._trains(leaves)
        self._trains_members(leaves, [*others, *around])
        self._takes_whole(list(map(self._within_transformations, others)))

    def _is_of_others(self, leaves: Sequence[Any]) -> bool:
        """Whether arguments are differentiated that no gradient before was of: the loop of that one took no steps.

        Such as the walk of an adversary through the samples, before the gradient that trains.
        """
        places = {self._given.get(id(self._within_transformations(leaf))) for leaf in leaves}
        is_later = self.trace.gradients > 0 and not self.trace.updates
        return is_later and bool(places) and None not in places and places.isdisjoint(self.trace.sources)

    def _takes_whole(self, leaves: Sequence[Any]) -> None:
        places = [self._given.get(id(leaf)) for leaf in leaves]
        unseen = [  # but for constants
            leaf for leaf, place in zip(leaves, places, strict=True)
            if may_choose(leaf, is_given=place is not None) and (hasattr(leaf, "_trace") or not shape_of(leaf))
        ]  # fmt: skip
        if not unseen:
            self.trace.whole.update(place for place in places if place is not None)

    def _trains_members(self, values: Iterable[Any], others: Sequence[Any]) -> None:
        """A gradient is taken so: with a dimension of ``vmap``'s in both, each of several models has its own rows."""
        places = (self._given.get(id(self._within_transformations(leaf))) for leaf in others)
        self.trace.beside.update(place for place in places if place is not None)
        members = set(map(members_of, values)) & set(map(members_of, others)) - {0}
        if members and not self.trace.members:
            self.trace.members = max(members)

    def value(self, value: Any, site: str) -> None:
        """The value that was differentiated; of several the first one is the loss."""
        if not self.trace.site:
            self.trace.site = site
            self._value = _weakly(value)

    def updated(self) -> None:
        """An update is applied."""
        if not self.trace.updates:
            self.trace.steps = 1
        self.trace.updates += 1

    def absorb(self, frame: Frame, trace: Trace, result: Any) -> None:
        """A call within this one has ended: what its trace holds is a part of this one's."""
        own = self.trace
        if (trace.updates and not own.updates) or (trace.gradients and not (own.updates or own.gradients)):
            own.steps = frame.steps_of(trace)
        elif trace.gradients and frame.carry is None and self._is_of_others(list(frame.given_at(trace.places))):
            own.steps = trace.steps
        if trace.gradients and not own.gradients:
            own.passes = frame.repeats * trace.passes
        own.gradients += trace.gradients
        own.updates += trace.updates
        own.is_in_loop |= trace.gradients > 0 and (trace.is_in_loop or frame.carry is not None)
        own.is_in_branch |= trace.is_in_branch or (trace.updates > 0 and frame.is_branch)
        own.parameters |= trace.parameters
        if trace.parts != 1:
            own.parts = trace.parts
        if not trace.gradients:
            return
        direct = list(frame.given_at(trace.places))
        own.members = own.members or trace.members
        self._trains_members(direct, list(frame.given_at(trace.beside)))
        self._follow([*direct, *frame._closed_over], direct=True)
        self._takes_whole(list(map(self._within_transformations, frame.given_at(trace.whole))))
        self._follow(frame.given_at(trace.sources.difference(trace.places)), direct=False)
        own.is_derived |= trace.is_derived or (not direct and not frame._closed_over and bool(trace.sources))
        for places, around in zip_longest(trace.weights, frame._around, fillvalue=()):
            self._trains([*frame.given_at(places), *around])
        if trace.site and not own.site:
            is_as_it_is = frame.carry is None and not frame.is_branch
            self.value(trace.loss_of(self._leaves(result)) if is_as_it_is else None, trace.site)

    def steps_of(self, trace: Trace) -> int:
        """How many steps all its passes are; 0 where nobody knows."""
        return (self.repeats if trace.updates else self.steps_by_gradient(trace)) * trace.steps

    def steps_by_gradient(self, trace: Trace) -> int:
        """How many steps the gradients of all its passes are, where updates are by hand; 0 where nobody knows.

        Where what is differentiated goes round, each pass is one; where it stays the same, all of them are parts of one
        batch, also where the loop hands it on as it is.
        """
        if self.carry is None:
            return 1
        if any(place[0] == self.carry and trace.passed.get(place[1]) != place for place in trace.sources):
            return self.repeats
        return 0 if trace.is_derived else 1

    def given_at(self, places: Iterable[Place]) -> Iterable[Any]:
        """What the call was given there."""
        return leaves_at(self._leaves, self.args, self.kwargs, places)

    def _follow(self, leaves: Iterable[Any], *, direct: bool) -> None:
        """Where arrays come from that are differentiated: arguments of the function, or what is around it."""
        for leaf in map(self._within_transformations, leaves):
            place = self._given.get(id(leaf))
            if place is not None:
                if direct and place not in self.trace.places:
                    self.trace.places.append(place)
                self.trace.sources.add(place)
                continue
            if self._is_around(leaf):
                self._closed_over.append(leaf)
                continue
            found = self._computed_of(leaf)
            self.trace.sources.update(found)
            self.trace.is_derived |= not found

    def _trains(self, leaves: Sequence[Any]) -> None:
        """Of these arrays one gradient is taken."""
        known = {place for places in self.trace.weights for place in places}
        origins = [(leaf, self._given.get(id(leaf))) for leaf in map(self._within_transformations, leaves)]
        found = dict.fromkeys(place for _, place in origins if place is not None)
        around = [leaf for leaf, place in origins if place is None and self._is_around(leaf)]
        others = [leaf for leaf, place in origins if place is None and not self._is_around(leaf)]
        for leaf in others[:MOST_LEAVES]:
            found |= dict.fromkeys(sorted(self._computed_of(leaf), key=repr))
        self.trace.weights.append(tuple(place for place in found if place not in known))
        self._around.append(around)

    def _is_around(self, leaf: Any) -> bool:
        level = getattr(leaf, "_trace", None)
        return level is None or (self._level is not None and level is not self._level)

    def _within_transformations(self, leaf: Any) -> Any:
        """What ``vmap`` and the like have wrapped."""
        while id(leaf) not in self._given and (hasattr(leaf, "batch_dim") or hasattr(leaf, "primal")):
            leaf = leaf.val if hasattr(leaf, "batch_dim") else leaf.primal
        return leaf

    def _computed_of(self, leaf: Any) -> set[Place]:
        """The arguments that an array is computed of, as far as JAX tells."""
        found, looked_at, waiting = set[Place](), {id(leaf)}, [leaf]
        while waiting and len(looked_at) < MOST_OPERATIONS:
            operation = getattr(waiting.pop(), "parent", None)
            for operand in getattr(operation, "in_tracers", ()):
                if id(operand) in looked_at:
                    continue
                looked_at.add(id(operand))
                place = self._given.get(id(operand))
                if place is not None:
                    found.add(place)
                else:
                    waiting.append(operand)
        return found


def _weakly(value: Any) -> Callable[[], Any] | None:
    try:
        return weakref.ref(value)
    except TypeError:
        return None
