"""Several steps in one call: the knob "steps_per_call".

A call of a compiled training step that is given what the call before gave waits for further ones (``groups``): the
script is given stand-ins for its results (``deferred``). Whoever reads one has the calls run that wait, so that a loop
which reads each step's results gains nothing. How many calls ran together is the evidence. A step counts once it runs.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..applied import Effect
from ..call_sites import frames, is_library
from ..patches import patch
from ..session import Session
from . import FRAMEWORK, deferred
from .deferred import Deferred, real, under_way
from .functions import CallWatch, JittedFunction
from .groups import GUARD, Counted, Group
from .plans import Given, Jax, Plan, UnfitError
from .reads import ReadWatch
from .screened import Screened
from .steps import StepWatch
from .types import Arguments, Call, Keywords

KNOB = "steps_per_call"
MOST_CALLS = 64
"""Of a function: where its calls can't go together by then, they never will."""
TRIED = 64
"""Calls, after which most of them must have run together."""
MOST_AGAIN = 8
"""Of states that are computed again, and of steps that are compiled again as the script has JAX do."""
LEAST_TOGETHER = 0.5
BY_SCRIPT = "the script donates what it gives to its training step"
UNSEEN = "{} donates arrays to what it compiles ahead of its calls"
BY_LIBRARY = "a library compiles the training step"
NOTHING = "no function of jax.jit that trains is given, in each call, what its call before gave"
UNLIKE = "calls of the training step are given arrays of other shapes or types, or other settings, than those before"
READ = "the script reads what a step gave before the next ones"
KEPT = "the script reads states that later steps have gone on from"
FAILED = "several steps in one call failed: {}"
CHECKED = "the script has JAX look for NaN in what each call gives, or compile nothing"
UNKNOWN = "this version of JAX takes no stand-ins for its arrays: {}"
MODES = ("jax_debug_nans", "jax_debug_infs", "jax_disable_jit")


class SeveralWatch:
    """``size``: steps in a call, as the config has it. ``counted``: what became of calls that could wait."""

    def __init__(self, session: Session, steps: StepWatch, reads: ReadWatch, jax: Any) -> None:
        self.session, self.steps, self.jax = session, steps, jax
        wanted = session.knobs.wanted(KNOB)
        self.size = wanted if type(wanted) is int else 1
        self.is_turned = self.size > 1
        self.is_active = self.is_turned or (session.measuring and not session.request.config)
        self.counted = Counted()
        self.why = NOTHING
        self.fits = False
        self.own: Jax | None = None
        self._reads = reads
        self._functions: weakref.WeakSet[_Waiting] = weakref.WeakSet()
        self._untold = 0
        self._screened = Screened(session, steps)
        self._is_top_level: Callable[[], bool] = sys.modules["jax._src.core"].trace_state_clean

    def install(self) -> None:
        """Right after JAX's import, before anything else is replaced."""
        if not self.is_active:
            return
        jax = self.jax
        try:
            tree, narrowed = jax.tree_util, jax.dtypes.canonicalize_dtype
            config: Any = sys.modules["jax._src.config"]
            array: Any = sys.modules["jax._src.array"].ArrayImpl
            if self.is_turned:
                deferred.install(jax)
                patch(array, "delete", self._settling)
                self.steps.tells, self.session.clock.recurring.catches_up = self.tells, self.catches_up
            self.own = Jax(
                jax.jit, jax.lax.scan, jax.numpy.stack, tree.tree_flatten, tree.tree_unflatten, narrowed,
                config.trace_context, array, lambda: jax.config.jax_enable_x64, config.enable_x64, jax.transfer_guard,
            )
        except (AttributeError, KeyError, TypeError) as error:
            self.stops(UNKNOWN.format(error))

    def watch_of(self, watch: CallWatch, options: Keywords) -> CallWatch:
        """What sees the calls of a function in place of ``watch``. ``options``: the script's, for JAX."""
        if not self.is_active:
            return watch
        donates = any(options.get(name) not in (None, (), []) for name in ("donate_argnums", "donate_argnames"))
        made = _Waiting(self, watch, _who_donates() if donates else "")
        self._functions.add(made)
        return made

    def tells(self, count: int) -> None:
        """So many steps were called: those count that don't wait, so that a block holds what was computed in it."""
        self._untold += count
        waiting = sum(each.waiting for each in self._functions)
        run = self._untold - waiting
        self._screened.called(count)
        if waiting and self._screened.is_on and (run > 0 or (self.counted.together and self._screened.is_enough)):
            self.settle()  # each loss belongs to its step, and the script as written ends with this one
            run = self._untold
        self._tell(run)

    def catches_up(self) -> None:
        """Has all calls run that wait, and tells of their steps: what comes next is training no more."""
        self.settle()
        self._tell(self._untold - sum(each.waiting for each in self._functions))

    def _tell(self, run: int) -> None:
        if run > 0:
            self._untold -= run
            self.steps.weights.catch_up()
            self._screened.run()
            self.steps.awaited = under_way  # where a block ends with these, those that wait belong to the next one
            try:
                self.session.step(FRAMEWORK, run)
            finally:
                self.steps.awaited = list

    def sees(self, function: JittedFunction) -> bool:
        """Whether a call of it may wait, or is looked at, which has to be the outermost one."""
        if self.own is None or not function.trains or self.steps.stands_aside:
            return False
        return self.steps.tracing.may_be_outermost and self._is_top_level()

    def settle(self) -> None:
        """Has all calls run that wait: what they are given may be taken from them now."""
        if self.is_turned and self._is_top_level():
            for each in list(self._functions):
                each.settle()

    def _settling(self, original: Call) -> Call:
        def delete(array: Any) -> Any:
            self.settle()
            return original(array)

        return delete

    def stops(self, why: str) -> None:
        """No further call waits."""
        self.own, self.fits, self.why = None, False, why

    def why_mode(self) -> str:
        """Why no call may wait in the state that JAX is in; "" where each may."""
        return CHECKED if any(getattr(self.jax.config, name, False) for name in MODES) else ""

    def goes_on(self) -> bool:
        """Whether calls go on waiting, by what became of those so far."""
        counted = self.counted
        if counted.failed:
            self.stops(FAILED.format(counted.failed))
        elif counted.again > MOST_AGAIN:
            self.stops(KEPT)
        elif counted.apart >= TRIED and not self._are_together:
            self.stops(self._why_apart)
        return self.own is not None

    @property
    def _are_together(self) -> bool:
        counted = self.counted
        return counted.together >= max(1, LEAST_TOGETHER * (counted.together + counted.apart))

    @property
    def _why_apart(self) -> str:
        return UNLIKE if self.counted.unlike > self.counted.alone else READ

    # what is told

    def written(self) -> None:
        """The script's own value, or why it is left out."""
        facts, steps = self.session.facts, self.session.clock.total_steps
        if self.fits and self._reads.reads < LEAST_TOGETHER * steps:
            facts.as_written[KNOB] = 1
        else:
            facts.left_out[KNOB] = READ if self.fits else self.why

    def report(self) -> None:
        """Evidence: whether most calls ran together."""
        knobs = self.session.knobs
        if KNOB not in knobs.requested:
            return
        if not self.is_turned:
            knobs.compare(KNOB, 1)
        elif not self.counted.together:
            knobs.inapplicable(KNOB, self._why_none)
        else:
            apart = "" if self._are_together else self._why_apart
            knobs.compare(KNOB, 1 if apart else self.size, why=apart)

    @property
    def _why_none(self) -> str:
        return self._why_apart if self.counted.apart and self.own is not None else self.why

    def effects(self) -> dict[str, Effect]:
        """For ``autotune run``."""
        return {KNOB: Effect(int(self._are_together), "" if self._are_together else self._why_none)}


def _who_donates() -> str:
    """By where it is asked for: what a library donates may be nothing, as with Equinox."""
    return BY_LIBRARY if is_library(next((name for name, _ in frames()), "")) else BY_SCRIPT


class _Waiting:
    """The calls of one compiled function. ``_why_not``: why none of them waits, whatever it is given."""

    def __init__(self, several: SeveralWatch, watch: CallWatch, why_not: str) -> None:
        self.jitted = watch.jitted
        self._several = several
        self._watch = watch
        self._why_not = why_not
        self._plan: Plan | None = None
        self._group: Group | None = None
        self._calls = self._forgotten = 0
        self._made: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._before: tuple[Any, Sequence[Any], dict[int, int]] | None = None

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return self._group.waiting if self._group is not None else 0

    def settle(self) -> None:
        """Has those run that wait."""
        group = self._group
        if group is not None:
            group.settle()

    def stages(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
        """It is compiled ahead of its calls, which aren't seen: they may be given what others wait for."""
        if self._why_not:
            self._several.settle()
            self._several.stops(UNSEEN.format("a library" if self._why_not == BY_LIBRARY else "the script"))
        return self._watch.stages(function, execute, args, kwargs)

    def calls(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
        """A call."""
        if self._why_not:
            self._several.settle()
        if self._calls <= MOST_CALLS and self._several.sees(function):
            execute = partial(self._call, function, execute)
        return self._watch.calls(function, execute, args, kwargs)

    def _call(self, function: JittedFunction, execute: Call, *args: Any, **kwargs: Any) -> Any:
        several = self._several
        own = several.own
        if own is None:
            return execute(*args, **kwargs)
        leaves, structure = own.flatten((args, kwargs))
        if self._plan is None:
            self._find_plan(function, execute, leaves, structure)
        plan = self._plan
        if plan is None:
            result = execute(*args, **kwargs)
            if self._calls <= MOST_CALLS:
                made = enumerate(own.flatten(result)[0])
                self._made = {id(leaf): (weakref.ref(leaf), number) for number, leaf in made}
            return result
        found = self._wait(plan, leaves, structure)
        if found is None:  # as written
            self._group = None
            if any(isinstance(leaf, Deferred) for leaf in leaves):
                args, kwargs = own.unflatten(structure, list(map(real, leaves)))
            return execute(*args, **kwargs)
        return own.unflatten(plan.made, found)

    def _wait(self, plan: Plan, leaves: Sequence[Any], structure: Any) -> list[Any] | None:
        """Stand-ins for the results of a call that waits; None where it can't."""
        several = self._several
        if plan.is_stale:
            self._forget()
        if self._plan is None:
            return None
        if structure != plan.structure:
            several.counted.unlike += 1
            if self._group is not None:
                self._group.is_ended = True
            return None
        with GUARD:
            group, self._group = self._group, None
            is_next = group is not None and group.newest is not None and self._fits(plan, leaves, group)
            if group is None or group.newest is None or not is_next:  # a look may have had it run
                if group is not None and group.newest is not None:
                    group.is_ended = True
                if several.why_mode() or not several.goes_on():
                    return None
                if not self._fits(plan, leaves, None):
                    several.counted.unlike += 1
                    return None
                group = Group(plan, leaves, several.counted)
            found = group.add(leaves)
            self._group = group if group.newest is not None else None
            return found

    def _forget(self) -> None:
        """The script compiles its step anew: so it is here, some few times."""
        self._plan, self._forgotten = None, self._forgotten + 1
        if self._forgotten > MOST_AGAIN:
            self._calls = MOST_CALLS + 1

    def _fits(self, plan: Plan, leaves: Sequence[Any], group: Group | None) -> bool:
        """Whether a call goes on with a group, or may begin one. No fault of ours keeps the script from its step."""
        try:
            return plan.fits(leaves, *((group.newest, group.given) if group is not None else (None, ())))
        except Exception as error:
            self._several.stops(FAILED.format(f"{type(error).__name__}: {error}"))
            return False

    def _find_plan(self, function: JittedFunction, execute: Call, leaves: Sequence[Any], structure: Any) -> None:
        """Once two calls in turn were given the same of the results of those before them."""
        self._calls += 1
        several = self._several
        assert several.own is not None
        places = ((number, self._place_of(leaf)) for number, leaf in enumerate(leaves))
        carried = {number: place for number, place in places if place is not None}
        before = self._before
        self._before = (structure, leaves, carried) if self._calls <= MOST_CALLS else None
        if not carried or before is None or before[0] != structure or before[2] != carried:
            return
        self._calls, self._before, self._made = MOST_CALLS + 1, None, {}
        try:
            why = self._why_not or several.why_mode() or ("" if function.is_scripts else BY_LIBRARY)
            if why:
                raise UnfitError(why)
            given = Given(structure, leaves, before[1], carried)
            plan = Plan(several.own, max(2, several.size), execute, given)
            if several.is_turned:
                plan.compile()
                self._plan, self._calls = plan, 0
            several.fits = True
        except UnfitError as error:
            several.why = str(error)
        except Exception as error:
            several.why = FAILED.format(f"{type(error).__name__}: {error}")

    def _place_of(self, leaf: Any) -> int | None:
        """Its number among the results of the call before; None where it isn't one of them."""
        made, number = self._made.get(id(leaf), (None, 0))
        return number if made is not None and made() is leaf else None
