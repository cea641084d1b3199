"""Where a step of a JAX loop ends, jitted and eager, what it trains on, and its loss.

A function that a script has compiled trains if a gradient is taken, or an update applied, while it is traced. Where it
does both, or is given what it gave, the end of its call is a step's. Where the update is applied outside, that ends the
step; where none is seen anywhere, each gradient ends the step before. Only the outermost call counts, and of several
functions or updates that take turns (a GAN's) the first one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ..call_sites import line_stack
from ..leader import Leader
from ..own_batches import OwnBatches, Spot
from ..session import Session
from ..watch import Pause
from . import FRAMEWORK
from .functions import JittedFunction
from .results import references_to
from .rows import Found, Outputs, Rows, agreed
from .types import Arguments, Call, Keywords, aval_of, shape_of

MOST_FUNCTIONS = 32
"""Of those that train so many are known."""
TOLD_SHARE = 0.9
"""Samples are counted where so many of the steps' are known."""


class EagerSite:
    """A place where gradients are taken, or updates applied, outside of any compiled function."""

    def __init__(self, name: str, rows: Rows) -> None:
        self.name = name
        self.rows = rows
        self.calls = 0


Owner = JittedFunction | EagerSite
"""What gradients are taken by."""


class StepWatch:
    """Told by ``patches`` of calls, gradients and updates; counts steps and samples.

    ``trained``: whether a step was seen. ``eager_steps``: those that no compiled function took. ``told``, ``untold``:
    gradients whose samples are known, and others. ``own_batches``: samples where the script states its batch size.
    """

    def __init__(self, session: Session, jax: ModuleType) -> None:
        self.session = session
        self.jax: Any = jax
        self.leaves: Callable[[Any], list[Any]] = self.jax.tree_util.tree_leaves
        self.outputs = Outputs(self.leaves)
        self.own_batches = OwnBatches(session)
        self.loops: list[int] = []
        """How often the loops of JAX's run whose bodies are traced now; 0 where nobody knows."""
        self.current: JittedFunction | None = None
        self.differentiates = 0
        self.trained = False
        self.eager_steps = 0
        self.told = self.untold = 0
        self.usual_rows: dict[int, int] = {}
        self.differing: list[int] = []
        self.result: Any = None
        """What the step that is being counted gave."""
        self.site = ""
        self._sites: dict[str, EagerSite] = {}
        self._any_update = False
        self._awaits: Owner | None = None
        self._leader = Leader(self._counts_anew)
        self._counting: Owner | None = None
        self._loss: Any = None
        self._training: list[JittedFunction] = []
        self._pausing = False
        self._newest: list[Callable[[], Any]] = []

    @property
    def stands_aside(self) -> bool:
        """Whether nothing here is the training that is measured: another framework's, thread or process."""
        session = self.session
        return not session.here or threading.get_ident() != session.thread or not session.may_be_of(FRAMEWORK)

    @property
    def training(self) -> Sequence[JittedFunction]:
        """Compiled functions that take gradients or apply updates, in the order in which they were met."""
        return self._training

    def new_function(self, fun: Call) -> JittedFunction:
        """For what the script gives to ``jax.jit``."""
        return JittedFunction(fun, self.leaves, self.outputs)

    # calls of compiled functions

    def ran(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
        """An outermost call of a compiled function, which ``execute`` does."""
        known = function.gradients > 0
        self._call_begins(function, args, kwargs)
        result = self.traces(function, execute, args, kwargs)
        if function.trains:
            function.calls += 1
            self._call_ended(function, args, kwargs, result, known=known)
        else:
            function.others += 1
        return result

    def traces(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
        """An outermost call of a compiled function, or of what only traces it: what is traced meanwhile is its own."""
        gradients = function.gradients
        self.current = function
        try:
            return execute(*args, **kwargs)
        finally:
            self.current = None
            function.traces += function.gradients != gradients
            self._tracing_ends()

    def _call_begins(self, function: JittedFunction, args: Arguments, kwargs: Keywords) -> None:
        session = self.session
        if function.gradients:
            self._gradient_begins()
            if session.measuring:
                self._count(function, function.rows.of(args, kwargs, function.parameters))
        elif function.others and self.trained and session.measuring and not (function.trains or function.is_of_library):
            # Scores, samples of what a generator makes; what is called with every step is part of it. A first call
            # may turn out to train.
            session.clock.validation_begins(function)

    def _call_ended(
        self, function: JittedFunction, args: Arguments, kwargs: Keywords, result: Any, *, known: bool
    ) -> None:
        session, rows = self.session, function.rows
        if session.measuring:
            if function.gradients and not known:  # its first call has shown that it trains
                self._gradient_begins()
                self._count(function, rows.first(args, kwargs, result, function.parameters))
            if not function.loss.is_known and function.gradients:
                function.loss.ran(self.jax.tree_util.tree_flatten_with_path(result)[0])
            if function not in self._training and len(self._training) < MOST_FUNCTIONS:
                self._training.append(function)
            if any(each.gradients and each.rows.is_learning for each in self._training):
                self.outputs.put(function, result)
            if function is self._counting and not function.updates:
                self._loss = function.loss.of(self.leaves(result))
                self.site = function.loss.site or function.name
        if function.updates:
            self._sees_updates()
            self._stepped(function, function.steps or 1, result)
        elif function.gradients and not self._any_update:
            if function.rows.carries:
                self._stepped(function, function.steps or 1, result)
            else:
                self._awaits = function
                self._newest = references_to(self.leaves, result)

    # gradients

    def traced_gradient(self, differentiated: Any) -> None:
        """A gradient is taken in the trace of the function that is called now; of what isn't part of another one."""
        function = self.current
        assert function is not None
        function.gradients += 1
        function.parameters.update(aval_of(leaf) for leaf in self.leaves(differentiated) if shape_of(leaf))
        function.is_in_loop |= bool(self.loops)
        if not function.updates:
            function.steps = math.prod(self.loops)
        if not self._pausing:
            self._pausing = True
            self.session.pause(Pause.COMPILATION, begins=True)

    def _tracing_ends(self) -> None:
        if self._pausing:
            self._pausing = False
            self.session.pause(Pause.COMPILATION, begins=False)

    def eager_gradient(self, execute: Call, given: Arguments, kwargs: Keywords, differentiated: Any) -> Any:
        """A gradient is taken on values. ``given``: the arguments that aren't differentiated."""
        site = line_stack()
        eager = self._sites.setdefault(site, EagerSite(site, Rows(self.leaves, self.outputs)))
        eager.calls += 1
        self._gradient_begins()
        if self.session.measuring:
            parameters = {aval_of(leaf) for leaf in self.leaves(differentiated) if shape_of(leaf)}
            self._count(eager, eager.rows.of(given, kwargs, parameters))
        result = execute()
        if not self._any_update:
            self._awaits = eager
            self._newest = references_to(self.leaves, result)
        return result

    def value_seen(self, value: Any) -> None:
        """The value that was differentiated, in a trace or not; of several in a step the first one's counts."""
        site = line_stack()
        if self.current is not None:
            self.current.loss.differentiated(value, site)
            return
        if isinstance(self._counting, EagerSite) and self._counting.name == site:
            self._loss, self.site = value, site

    def _gradient_begins(self) -> None:
        """A gradient is about to be taken: where no update is ever seen the step before ends here."""
        self.session.check_stop()
        if self.session.measuring:
            self.session.clock.fetch_begins()
        awaited, self._awaits = self._awaits, None
        if awaited is not None and not self._any_update:
            steps = awaited.steps if isinstance(awaited, JittedFunction) else 1
            self._stepped(awaited, steps or 1, [made() for made in self._newest])

    # updates

    def update(self, execute: Call) -> Any:
        """An update of parameters is applied: in a trace, or on values, which ends a step."""
        if self.current is not None:
            self.current.updates += 1
            self.current.steps = math.prod(self.loops)
            return execute()
        site = line_stack()
        result = execute()
        self._sees_updates()
        self._awaits = None
        self._stepped(site, 1, result)
        return result

    def _sees_updates(self) -> None:
        """An update ends steps from here on: gradients before the first one, of a batch in parts, were none."""
        if not self._any_update:
            self._any_update = True
            self._leader.resigns()

    # steps and samples

    def _look_at_devices(self, result: Any) -> None:
        """Ends a trial whose script computes on several devices: one is what a study tunes for."""
        places = [leaf.sharding.device_set for leaf in self.leaves(result) if hasattr(leaf, "sharding")]
        most = max(map(len, places), default=1)
        if most > 1:
            why = f"the script computes on {most} devices at once: a trial has one"
            self.session.fail("unsupported", why)
            self.session.stop(why, complete=False)

    def _counts_anew(self) -> None:
        self._counting = None

    def _stepped(self, key: object, count: int, result: Any) -> None:
        """Steps of one function or update; of several that take turns the first one's are counted."""
        if isinstance(key, EagerSite):
            key = key.name
        if isinstance(key, JittedFunction) and key.follows(self._leader.key):
            self._leader.resigns()
        if not self._leader.leads(key):
            return
        self.eager_steps += isinstance(key, str)
        self.trained = True
        if self.session.applied is not None:
            self.session.applied.stepped()
        if not self.session.measuring:
            return
        if not self.session.clock.total_steps:
            self._look_at_devices(result)
        self.session.clock.asynchronous = True  # on each of its devices JAX lets the script run ahead
        self.own_batches.step_ends()
        self._newest, self.result = references_to(self.leaves, result), result
        try:
            self.session.step(FRAMEWORK, count)
        finally:
            self.result = None

    def _count(self, owner: Owner, found: list[Found]) -> None:
        """The samples of a gradient; of several functions in a step the first one's."""
        if self._counting is None or (isinstance(owner, JittedFunction) and owner.follows(self._counting)):
            self._counting = owner
        if self._counting is not owner:
            return
        rows = None if isinstance(owner, JittedFunction) and owner.is_in_loop else agreed(found)
        if rows is None:
            self.untold += 1
            self.differing = sorted({each.shape[0] for each in found})
        else:
            self.told += 1
            self.usual_rows[rows] = self.usual_rows.get(rows, 0) + 1
        if self.own_batches.is_wanted:
            sizes: dict[Spot, int] = {
                (owner.name, each.number, dimension): size
                for each in found for dimension, size in enumerate(each.shape)
            }  # fmt: skip
            self.own_batches.passed(sizes)
        elif rows is not None:
            self.session.clock.add_samples(rows, 0.0)

    @property
    def counts_samples(self) -> bool:
        """Whether the samples that trained could be counted."""
        if self.own_batches.is_wanted:
            return self.own_batches.counts
        return self.told > 0 and self.told >= TOLD_SHARE * (self.told + self.untold)

    @property
    def rows(self) -> int:
        """Samples of most gradients; 0 where they aren't known."""
        return max(self.usual_rows, key=lambda rows: self.usual_rows[rows]) if self.usual_rows else 0

    # what the clock asks

    def synchronize(self) -> None:
        """Waits for what the newest step gave: JAX gives the script its results before they are there."""
        newest = self.result if self.result is not None else [made() for made in self._newest]
        self.jax.block_until_ready(newest)

    def take_loss(self) -> tuple[float, str] | None:
        """The loss of the step that is being counted, and where it is taken; None where none is seen."""
        value, self._loss = self._loss, None
        site, leader = self.site, self._leader.key
        if isinstance(leader, JittedFunction) and leader.gradients and (leader.updates or leader.rows.carries):
            value, site = leader.loss.of(self.leaves(self.result)), leader.loss.site or leader.name
        if value is None or getattr(value, "shape", None) != ():
            return None
        return float(value), site

