"""Which function gave what another one is given: parameters that go round, and data that are made for the training."""

from __future__ import annotations

from .functions import JittedFunction
from .rows import Outputs
from .types import Arguments, Keywords, Leaves, places_of


def look_at_givers(
    leaves: Leaves, given_by: tuple[Outputs, Outputs], function: JittedFunction, args: Arguments, kwargs: Keywords
) -> None:  # fmt: skip
    """Who gave what it is given: parameters that it gave itself, or data of a function that takes no gradient.

    ``given_by``: what functions that train gave, and what others did. Of two that give their parameters to each other
    each one's calls are steps. They aren't the same parameters where a state goes through both, of which each one
    updates a part; and where a function is given its own results as well, the other's are what its gradient is taken
    at, and not what it updates (SAM).
    """
    trace, (outputs, other_outputs) = function.last, given_by
    own, others = False, set[JittedFunction]()
    for place, leaf in places_of(leaves, args, kwargs):
        trainer, number = outputs.place_of(leaf)
        if trainer is function:
            own |= number not in trace.passed
            function.carries |= place in trace.places or not trace.places
        elif isinstance(trainer, JittedFunction) and place in trace.places and number not in trainer.last.passed:
            others.add(trainer)
        giver = other_outputs.giver_of(leaf)
        if isinstance(giver, JittedFunction):
            giver.is_part = True
    if own and others:
        function.leaves_team()
    for each in others:
        if bool(each.last.updates) == bool(trace.updates):
            function.joins(each)
