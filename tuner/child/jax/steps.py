"""Where a step of a JAX loop ends, jitted and eager, what it trains on, and its loss.

A function that a script has compiled trains if a gradient is taken, or an update applied, while it is traced. Where it
does both, or is given the parameters that it gave, the end of its call is a step's. Where the update is applied
outside, that ends the step; where none is seen anywhere, the next gradient of other parameters does. Only the outermost
call counts, and of several functions or updates that take turns (a GAN's) the first one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, cast

from ..call_sites import line_stack
from ..leader import Leader
from ..session import Session
from . import FRAMEWORK
from .deferred import is_there
from .devices import DeviceWatch
from .functions import JittedFunction
from .givers import look_at_givers
from .losses import number_of, place_of
from .passes import Pass, Passes
from .results import Awaited, Newest, ends_of, references_to, still_there
from .rows import LOOKS, Found, Outputs, Rows, is_number, without_models
from .sites import EagerSite, Owner
from .traces import Trace
from .tracing import Tracing
from .types import Arguments, Aval, Call, Keywords, aval_of, leaves_at, leaves_by, places_of, shape_of
from .weights import WeightWatch

MOST_FUNCTIONS = 32
"""Of those that train so many are known."""


class StepWatch:
    """Told by ``patches`` of calls, gradients and updates; counts steps and samples.

    ``trained``: whether a step was seen. ``eager_steps``: those that no compiled function took. ``eager_gradients``:
    those taken on values; ``kinds``: shapes of what they were taken of. ``apart``: names of what was set apart to
    validate. ``schedule_is_unknown``: whether the number of batches of an update changes. ``in_turns``: names of
    functions that train the same parameters, each call of which counts. ``beside``: names of others that train, and
    how many of their calls count as no step.
    """

    def __init__(self, session: Session, jax: ModuleType) -> None:
        self.session = session
        self.jax: Any = jax
        self.leaves = leaves_by(self.jax.tree_util.tree_leaves)
        self.outputs = Outputs(self.leaves)
        self.passes = Passes(session)
        self.devices = DeviceWatch(session)
        self.tracing = Tracing(session, jax)
        self.weights = WeightWatch(session, jax)
        self.trained = self.schedule_is_unknown = False
        self.eager_steps = self.eager_gradients = 0
        self.apart: list[str] = []
        self.in_turns: dict[str, None] = {}
        self.beside: dict[str, int] = {}
        self.result: Any = None
        """What the step that is being counted gave: its loss is read from that."""
        self._due = self.seen_loss = cast(Any, None)
        self.site = ""
        self._other_outputs = Outputs(self.leaves)
        self._sites: dict[str, EagerSite] = {}
        self.kinds: set[Aval] = set()
        self._any_update = False
        self.awaits: Awaited[Owner] | None = None
        self.leader = Leader(self._counts_anew)
        self._stepping: object = None
        self._leading = self._called = self._parts_done = 0
        self._eager_parts = 1
        self._counting: Owner | None = None
        self._training: list[JittedFunction] = []
        self.newest = Newest()
        self.tells: Callable[[int], None] = lambda count: session.step(FRAMEWORK, count)
        self.awaited: Callable[[list[Any]], list[Any]] = list

    @property
    def stands_aside(self) -> bool:
        """Whether nothing here is the training that is measured: another framework's, thread or process."""
        session = self.session
        return not session.here or threading.get_ident() != session.thread or not session.may_be_of(FRAMEWORK)

    @property
    def training(self) -> Sequence[JittedFunction]:
        """Compiled functions that take gradients or apply updates, in the order in which they were met."""
        return self._training

    @property
    def uses_jax(self) -> bool:
        """Whether the script compiles functions, or takes gradients."""
        return self._called + self.tracing.gradients + self.eager_gradients > 0

    @property
    def holds_all(self) -> str:
        """Why nothing can be measured where one call takes all steps; "" where none does."""
        leader = self.awaits.owner if self.awaits is not None else self.leader.key
        if not isinstance(leader, JittedFunction) or leader.calls > 1 or leader.last.steps == 1:
            return ""
        steps = f"all {leader.last.steps} steps" if leader.last.steps else "all steps"
        return f"{steps} are in one call of {leader.name}, in which nothing can be measured"

    def new_function(self, fun: Call) -> JittedFunction:
        """For what the script gives to ``jax.jit``."""
        return JittedFunction(fun, self.leaves, self.jax.tree_util.tree_flatten, self.outputs)

    # calls of compiled functions

    def ran(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
        """An outermost call of a compiled function, which ``execute`` does."""
        self._called += not function.is_of_library
        expected = function.traces.find(args, kwargs)
        self._call_begins(function, expected or Trace(), args, kwargs)
        result, function.last = self.tracing.watched(function, execute, args, kwargs, expected)
        made = references_to(self.leaves, result)
        self.newest.put(function, made)
        if function.last.trains:
            function.calls += 1
            self.weights.call_ended(function, args, kwargs, result)
            self.devices.ran(function, [each() for each in made])
            self._call_ended(function, expected or Trace(), args, kwargs, result)
        else:
            function.others += 1
            if function.others <= LOOKS:
                function.gives_numbers = all(map(is_number, self.leaves(result)))
            if function.is_plain and function.others <= LOOKS and self.session.measuring:
                self._other_outputs.put(function, result)
        if function.last.parts != 1 and not function.last.updates:
            self._eager_parts = function.last.parts
        return result

    def _call_begins(self, function: JittedFunction, expected: Trace, args: Arguments, kwargs: Keywords) -> None:
        if expected.gradients:
            self._gradient_begins(lambda: self._given_to(expected, args, kwargs), (args, kwargs))
            self.weights.call_begins(function, expected, args, kwargs)
        elif expected.updates:
            self.passes.keep_used(lambda: self.leaves((args, kwargs)))
        elif self._is_looked_at(function, args, kwargs):
            if function.is_plain and function.others <= LOOKS:  # rollouts go on from where they were
                given = (self._other_outputs.giver_of(leaf) for _, leaf in places_of(self.leaves, args, kwargs))
                function.is_part |= any(giver is function for giver in given)
            # Scores, samples of what a generator makes; what is called with every step is part of it. A first call
            # may turn out to train.
            if self.trained and not function.is_part:
                self._may_validate(function, args, kwargs)

    def _is_looked_at(self, function: JittedFunction, args: Arguments, kwargs: Keywords) -> bool:
        """Whether this call, which takes no gradient, may be a validation's."""
        clock = self.session.clock
        if self.trained and self.session.measuring and not clock.validating:
            function.is_asked(clock.total_steps, lambda: self.leaves((args, kwargs)), self._training, self.kinds)
        return function.others > 0 and self.session.measuring and function.may_validate

    def _given_to(self, trace: Trace, args: Arguments, kwargs: Keywords) -> list[Any]:
        """What such a call differentiates, as far as that is given to it."""
        return list(leaves_at(self.leaves, args, kwargs, trace.places))

    def _may_validate(self, function: JittedFunction, args: Arguments, kwargs: Keywords) -> None:
        """A function without a gradient is called between steps. A step is here a call of the leading function.

        Of one that gives numbers alone, of data that it was given before, it is each of those of such a call. Slices
        of data are new arrays with each call.
        """
        clock = self.session.clock
        seen = clock.total_steps - clock.instruments.unseen
        calls, steps = self._leading - function.seen_at[0], seen - function.seen_at[1]
        is_first, function.seen_at = function.seen_at == (0, 0), (self._leading, seen)
        again = function.is_given_again(self.leaves((args, kwargs))) or function.comes_again
        since = steps if function.gives_numbers and again else calls
        if not clock.validating and clock.recurring.comes_with_steps(since, is_first=is_first):
            return
        clock.recurring.catches_up()
        self._due = args, kwargs  # the loss isn't read from those
        try:
            clock.validation_begins(function)
        finally:
            self._due = None
        if clock.validating and since >= clock.recurring.fewest_steps and function.name not in self.apart:
            self.apart.append(function.name)

    def _call_ended(
        self, function: JittedFunction, expected: Trace, args: Arguments, kwargs: Keywords, result: Any
    ) -> None:  # fmt: skip
        trace = function.last
        if trace.gradients and not expected.gradients:  # its first call has shown that it trains
            self._gradient_begins(lambda: self._given_to(trace, args, kwargs), (args, kwargs))
        elif trace.updates and not expected.updates:
            self.passes.keep_used(lambda: self.leaves((args, kwargs)))
        if self.session.measuring:
            is_first = function.calls == 1 and not expected.gradients
            self._look_at(function, args, kwargs, result, is_first=is_first)
        if trace.updates:
            self._sees_updates()
            self._stepped(function, trace.steps or 1, trace.parts, result)
        elif trace.gradients and not self._any_update:
            if function.carries:
                self._stepped(function, trace.steps or 1, trace.parts, result)
            else:
                self.awaits = Awaited(function, trace.steps or 1, self._given_to(trace, args, kwargs))

    def _look_at(
        self, function: JittedFunction, args: Arguments, kwargs: Keywords, result: Any, *, is_first: bool
    ) -> None:  # fmt: skip
        """The samples and the loss of a call that trains."""
        trace = function.last
        if trace.gradients:
            if is_first:
                found = function.rows.first(args, kwargs, result, trace.parameters)
            else:
                found = function.rows.of(args, kwargs, trace.parameters)
            whole = leaves_at(self.leaves, args, kwargs, trace.whole)
            is_sure = function.rows.takes_all(found, list(whole))
            batch = [each.of_members(trace.members) for each in found]
            self._count(function, batch, result, (args, kwargs), trace.parameters, is_sure=is_sure)
            if not trace.loss_is_known:
                paths = self.jax.tree_util.tree_flatten_with_path(result)[0]
                trace.loss = place_of(None, paths, function.rows.devices)
                trace.loss_is_known = True
        if function not in self._training and len(self._training) < MOST_FUNCTIONS:
            self._training.append(function)
        if any(each.last.gradients and each.rows.is_learning for each in self._training):
            look_at_givers(self.leaves, (self.outputs, self._other_outputs), function, args, kwargs)
            self.outputs.put(function, result)
        if function is self._counting and not trace.updates:
            self.seen_loss = trace.loss_of(self.leaves(result))
            self.site = trace.site or function.name

    # eager gradients

    def eager_gradient(
        self, execute: Call, given: Arguments, kwargs: Keywords, differentiated: Any, around: Keywords
    ) -> Any:  # fmt: skip
        """A gradient is taken on values. ``given``: the arguments that aren't differentiated; ``around``: what its
        function closes over, by names that no argument has.
        """
        self.eager_gradients += 1
        site = line_stack()
        eager = self._sites.setdefault(site, EagerSite(site, Rows(self.leaves, self.outputs)))
        trained = self.leaves(differentiated)
        self._gradient_begins(lambda: trained, trained)
        self.weights.eager_gradient(eager, trained)
        if self.session.measuring:
            parameters = {aval_of(leaf) for leaf in trained if shape_of(leaf)}
            self.kinds |= parameters
            kwargs = {**kwargs, **without_models(self.leaves, around, self.kinds)}
            found = eager.rows.of(given, kwargs, parameters)
        result = execute()
        if self.session.measuring:
            is_sure = eager.rows.takes_all(found, self.leaves((given, kwargs)))
            self._count(eager, found, result, (trained, given, kwargs), parameters, is_sure=is_sure)
        made = references_to(self.leaves, result)
        self.newest.put(eager, made)
        self.devices.ran(eager, [each() for each in made])
        if not self._any_update:
            self.awaits = Awaited(eager, 1, trained)
        return result

    def value_seen(self, value: Any) -> None:
        """The value that was differentiated, in a trace or not; of several in a step the first one's counts."""
        if self.tracing.frames:
            self.tracing.value_seen(value)
            return
        site = line_stack()
        if isinstance(self._counting, EagerSite) and self._counting.name == site:
            self.seen_loss, self.site = value, site

    def _gradient_begins(self, parameters: Callable[[], Sequence[Any]], given: Any) -> None:
        """A gradient is about to be taken: where no update is ever seen, one of others ends the step before."""
        self.session.check_stop()
        if self.session.measuring:
            self.session.clock.fetch_begins()
        awaited = self.awaits
        if awaited is None or (not self._any_update and awaited.goes_on(parameters())):
            return
        self.awaits = None
        if not self._any_update:
            parts = awaited.owner.last.parts if isinstance(awaited.owner, JittedFunction) else 1
            self._stepped(awaited.owner, awaited.steps, parts, given)

    # updates

    def multi_step(self, every: int) -> None:
        """An update is about to be applied that takes so many batches; 0: their number changes."""
        self.schedule_is_unknown |= not every
        if self.tracing.frames:
            self.tracing.multi_step(every)
        else:
            self._eager_parts = every

    def update(self, execute: Call, trained: Any = ()) -> Any:
        """An update of parameters is applied: in a trace, or on values (``trained``), which ends a step."""
        if self.tracing.frames:
            self.tracing.update()
        if not self.tracing.may_be_outermost:
            return execute()
        site = line_stack()
        result = execute()
        self._sees_updates()
        if self.leader.key in (None, site):
            self._counting = self.passes.owner_of_update(self._counting, lambda: self.leaves(trained))
        parts, self._eager_parts = self._eager_parts, 1
        self._stepped(site, 1, parts, result)
        return result

    def _sees_updates(self) -> None:
        """An update ends steps from here on: gradients before the first one, of a batch in parts, were none."""
        self.awaits = None
        if not self._any_update:
            self._any_update, self.beside = True, {}
            self.leader.resigns()

    # steps and samples

    def _counts_anew(self) -> None:
        self._counting, self._parts_done, self.beside = None, 0, {}
        self.passes.forget()

    def _stepped(self, key: object, count: int, parts: int, result: Any) -> None:
        """Steps of one function or update; of several that take turns the first one's are counted.

        ``parts``: batches of an update; ``count`` is how many of those were taken.
        """
        key, leader = key.name if isinstance(key, EagerSite) else key, self.leader.key
        if isinstance(key, JittedFunction) and key.follows(leader, self._leading):
            self.leader.resigns()
            self.beside.pop(key.name, None)
            leader = None
        name = key.name if isinstance(key, JittedFunction) else f"the update at {key}"
        if isinstance(key, JittedFunction) and isinstance(leader, JittedFunction) and leader in key.team - {key}:
            self.in_turns.update({leader.name: None, name: None})
            self.leader.leads(leader)
        elif not self.leader.leads(key):
            self.beside[name] = self.beside.get(name, 0) + 1
            self.passes.forget_applied()
            return
        self._stepping = key
        self._leading += 1
        if parts > 1:
            count, self._parts_done = divmod(self._parts_done + count, parts)
            if not count:
                return
        self.eager_steps += isinstance(key, str)
        if not self.trained:
            self.devices.first_step(self.leaves(result))
        self.trained = True
        if self.session.applied is not None:
            self.session.applied.stepped()
        if not self.session.measuring:
            return
        self.session.clock.asynchronous = True  # on each of its devices JAX lets the script run ahead
        if isinstance(key, JittedFunction) and key.last.gradients:
            self._counting = key
        self.passes.step_ends(self._counting)
        self.newest.put(key, references_to(self.leaves, result))
        self.result = result
        try:
            self.tells(count)
        finally:
            self.result = None

    def _count(
        self, owner: Owner, found: list[Found], result: Any, given: Any, parameters: Iterable[Aval],
        *, is_sure: bool | None,
    ) -> None:  # fmt: skip
        """The samples of a gradient; of several functions in a step the first one's."""
        if self._counting is None or (isinstance(owner, JittedFunction) and owner.follows(self._counting)):
            self._counting = owner
        trace = owner.last if isinstance(owner, JittedFunction) else Trace()
        times = trace.passes if trace.is_in_loop else None
        is_part = self._any_update and not trace.updates
        made, of = ends_of(self.leaves, result), frozenset(parameters)
        taken = Pass(owner, owner.name, found, times, made, trace.steps, is_sure, is_part, of)
        self.passes.add(taken, lambda: self.leaves(given))

    # what the clock asks

    def synchronize(self) -> None:
        """Waits for what the newest step gave, and what the newest calls of other functions did.

        JAX gives the script its results before they are there. Calls that wait for others count later, and go on.
        """
        newest = [leaf for leaf in self.leaves((self.result, self._due)) if still_there(leaf)]
        self.jax.block_until_ready(self.awaited([*newest, *self.newest.alive()]))

    def take_loss(self) -> tuple[float, str] | None:
        """The loss of the step that is being counted, and where it is taken; None where none is seen, or it waits."""
        value, site, devices = self.newest_loss()
        self.seen_loss = None
        number = number_of(value, devices) if is_there(value) else None
        return (number, site) if number is not None else None

    def newest_loss(self) -> tuple[Any, str, int]:
        """The same as JAX has it, and on how many devices each has its own."""
        value, site, newest, of = self.seen_loss, self.site, self._stepping, self._counting
        if isinstance(newest, JittedFunction) and newest.last.gradients and (newest.last.updates or newest.carries):
            value, site, of = newest.last.loss_of(self.leaves(self.result)), newest.last.site or newest.name, newest
        return value, site, of.rows.devices if of is not None else 0
