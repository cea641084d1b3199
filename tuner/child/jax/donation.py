"""Memory that a compiled training step may use again: the knob "donation".

Of arguments that are donated (``donate_argnums``) JAX computes the results in their own memory, and they are gone. A
call donates what its function, or another one that trains, gave before, where nothing in the script can read it again:
the call's statement gives the variable a new value (``rebinding``), and nothing else holds the arrays (``holders``).
Each call is looked at, and one of which that isn't sure runs as written. That the arrays are gone is the evidence.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

from ..applied import Effect
from ..call_sites import is_library
from ..patches import patch
from ..session import Session
from .functions import CallWatch, Jitted, JittedFunction
from .holders import ARE_COUNTED, HELD, Holders, NotAloneError
from .rebinding import OTHER_STATEMENT, Rebindings
from .steps import MOST_FUNCTIONS, StepWatch
from .types import Arguments, Aval, Call, Keywords, aval_of

KNOB = "donation"
LOOKS, MOST_CALLS = 16, 64
"""Calls of a function that is given such results, and any, in which it is found out whether the script may donate."""
MOST_GROWTHS = 4
LEAST_BYTES = 1 << 20
BY_SCRIPT = "the script donates what it gives to its training step itself"
BY_LIBRARY = "a library calls the training step for the script"
NOTHING = "no function of jax.jit that trains is given what one gave before"
UNCOUNTED = "who holds an array isn't seen with this version of Python or of JAX"
CHECKED = "the script has JAX look for NaN, which runs a step that has one again"
SEVERAL = "the training step's state lies on several devices"
SMALL = "the training step's state takes {} KiB, which is made anew sooner than it is looked at who holds it"
NO_PLACE = "the training step gives no results that could be computed in the memory of what it is given"
NOT_TAKEN = "JAX didn't use the memory that it was given"
REFUSED = "JAX didn't take what it was given: {}"
MODES = ("jax_debug_nans", "jax_debug_infs", "jax_disable_jit")

Donated = Mapping[int | str, Sequence[Any]]
"""Arguments of a call, by position or name → their arrays."""


class DonationWatch:
    """``is_active``: whether calls are looked at: the config donates (``is_turned``), or it is the script as written.

    ``functions``: those that train, and are given what such functions gave: what was found of each.
    """

    def __init__(self, session: Session, steps: StepWatch, jax: Any) -> None:
        self.session = session
        self.steps = steps
        self.jax = jax
        self.functions: weakref.WeakKeyDictionary[JittedFunction, Found] = weakref.WeakKeyDictionary()
        self.rebindings = Rebindings()
        self.holders: Holders | None = None
        self.is_turned = session.knobs.wanted(KNOB) is True
        self.is_active = self.is_turned or (session.measuring and not session.request.config)
        self._is_top_level: Callable[[], bool] = sys.modules["jax._src.core"].trace_state_clean
        self._made: dict[int, Results] = {}
        self._kinds: weakref.WeakKeyDictionary[JittedFunction, Counter[Aval]] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Right after JAX's import. Of a version without these places nothing is donated."""
        if not self.is_active or not ARE_COUNTED:
            return
        try:
            array: Any = sys.modules["jax._src.array"]
            self.holders = Holders(array.ArrayImpl, self.jax.tree_util.default_registry)
            for owner, name in (
                (self.jax, "device_put"), (sys.modules["jax._src.api"], "device_put"),
                (array.ArrayImpl, "addressable_data"), (self.jax, "make_array_from_single_device_arrays"),
            ):  # fmt: skip
                patch(owner, name, self._sharing)
        except (AttributeError, KeyError) as error:
            self.fails(error)

    def fails(self, error: Exception) -> None:
        """From here on nothing is donated: a fault of ours mustn't keep the script from its steps."""
        self.holders = None
        self.session.note(f"who holds JAX's arrays isn't seen: {type(error).__name__}: {error}")

    def watch_of(self, watch: CallWatch, make: Callable[..., Call], options: Keywords) -> CallWatch:
        """What sees the calls of a function in place of ``watch``; ``make`` makes the same with further options.

        ``options``: those of JAX's that the script gives.
        """
        if not self.is_active:
            return watch
        by_script = any(options.get(name) not in (None, (), []) for name in ("donate_argnums", "donate_argnames"))
        return _Donating(self, watch, make, by_script=by_script)

    def sees(self, function: JittedFunction) -> bool:
        """Whether a call of it is to be looked at, which has to be the outermost one."""
        found, tracing = self.functions.get(function), self.steps.tracing
        is_known = found is not None and (found.looks >= LOOKS or found.calls >= MOST_CALLS)
        if self.holders is None or (is_known and not self.is_turned) or self.steps.stands_aside:
            return False
        return tracing.may_be_outermost and self._is_top_level()

    # what functions gave

    def gave(self, function: JittedFunction, result: Any) -> None:
        """The results of its newest call."""
        carried = self.functions[function].carried if function in self.functions else frozenset[int]()
        if id(function) not in self._made and len(self._made) >= MOST_FUNCTIONS:
            del self._made[next(iter(self._made))]
        leaves = self.steps.leaves(result)
        self._made[id(function)] = Results(leaves, carried)
        if function not in self._kinds:
            self._kinds[function] = Counter(aval_of(leaf) for leaf in leaves if hasattr(leaf, "is_deleted"))

    def are_results(self, leaves: Iterable[Any]) -> bool:
        """Whether each is a result of some function's newest call: no other array has a part in its memory."""
        made = list(self._made.values())
        return all(any(given.number_of(leaf) is not None for given in made) for leaf in leaves)

    def have_places(self, function: JittedFunction, leaves: Sequence[Any]) -> bool:
        """Whether results of this function may be computed in the memory of all of them: JAX warns of others."""
        return Counter(map(aval_of, leaves)) <= self._kinds.get(function, Counter())

    def numbers_of(self, leaves: Sequence[Any]) -> frozenset[int]:
        """Among the results of any function, the numbers of those of these that are such."""
        found = (given.number_of(leaf) for given in list(self._made.values()) for leaf in leaves)
        return frozenset(number for number in found if number is not None)

    def lasting(self) -> list[Any]:
        """Of the newest results one each that no call donates: others may hold that."""
        return [leaf for made in list(self._made.values()) if (leaf := made.lasting()) is not None]

    def _sharing(self, original: Call) -> Call:
        """What may give another array in the memory of the one that it is given, which nobody counts. In any thread."""

        def share(*args: Any, **kwargs: Any) -> Any:
            made = list(self._made.values())
            for leaf in self.steps.leaves((args, kwargs)):
                for given in made:
                    given.forget(leaf)
            return original(*args, **kwargs)

        return share

    # what is told

    def why_not(self) -> str:
        """Why no call may donate, or has."""
        if not ARE_COUNTED or self.holders is None:
            return UNCOUNTED
        return next((found.why for found in self._told if found.why), NOTHING)

    @property
    def _told(self) -> list[Found]:
        return [found for found in self.functions.values() if found.looks]

    def written(self) -> None:
        """The script's own value, or why it is left out."""
        facts, size = self.session.facts, sum(found.bytes for found in self._told)
        if not size:
            facts.left_out[KNOB] = self.why_not()
        elif size < LEAST_BYTES:
            facts.left_out[KNOB] = SMALL.format(-(-size // 1024))
        else:
            facts.as_written[KNOB] = False

    def report(self) -> None:
        """Evidence: functions of which calls have donated."""
        knobs, told = self.session.knobs, self._told
        if KNOB not in knobs.requested:
            return
        if knobs.requested[KNOB] and not told:
            knobs.inapplicable(KNOB, self.why_not())
            return
        changed = sum(found.donated > 0 for found in told)
        sites = max(1, changed, sum(found.bytes > 0 for found in told))
        knobs.compare(KNOB, changed > 0, sites=sites, changed=changed, why="" if changed else self.why_not())

    def effects(self) -> dict[str, Effect]:
        """For ``autotune run``."""
        changed = sum(found.donated > 0 for found in self._told)
        return {KNOB: Effect(changed, "" if changed else self.why_not())}


class Results:
    """What a call gave, held loosely. ``carried``: the numbers of those that a later call is given back."""

    def __init__(self, leaves: Sequence[Any], carried: frozenset[int]) -> None:
        arrays = [(weakref.ref(leaf), number) for number, leaf in enumerate(leaves) if hasattr(leaf, "is_deleted")]
        self._of = {id(made()): (made, number) for made, number in arrays}
        self.lasting: Callable[[], Any] = next((made for made, number in arrays if number not in carried), _nothing)

    def number_of(self, leaf: Any) -> int | None:
        """Its number; None where it isn't one of them."""
        made, number = self._of.get(id(leaf), (None, 0))
        return number if made is not None and made() is leaf else None

    def forget(self, leaf: Any) -> None:
        """Another array may lie in its memory."""
        self._of.pop(id(leaf), None)


class Found:
    """Of one function. ``calls``: all that were looked at; ``looks``: those that were given results of such functions.

    ``bytes``: of what they could donate; ``donated``: calls that have. ``why``: why the last one that couldn't didn't.
    ``carried``: the numbers of its results that were given back.
    """

    def __init__(self) -> None:
        self.calls = self.looks = self.donated = self.bytes = 0
        self.why = ""
        self.carried: frozenset[int] = frozenset()


class _Donating:
    """The calls of one compiled function. ``_chosen``: what they donate, which grows with what they could.

    ``_why_not``: why none of them does, whatever it is given.
    """

    def __init__(
        self, donation: DonationWatch, watch: CallWatch, make: Callable[..., Call], *, by_script: bool
    ) -> None:  # fmt: skip
        self.stages = watch.stages
        self.jitted = watch.jitted
        self._donation = donation
        self._watch = watch
        self._make = make
        self._why_not = BY_SCRIPT if by_script else ""
        self._chosen: frozenset[int | str] = frozenset()
        self._unfit: dict[int | str, str] = {}
        self._growths = 0
        self._donates: Call | None = None

    def calls(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
        """A call by ``Jitted``, which the frame around that makes."""
        donation = self._donation
        if not donation.sees(function):
            return self._watch.calls(function, execute, args, kwargs)
        if function.trains:
            try:
                execute = self._executes(function, execute, args, kwargs, _caller_of(sys._getframe(1)))
            except Exception as error:
                donation.fails(error)
        result = self._watch.calls(function, execute, args, kwargs)
        if function.trains:
            donation.gave(function, result)
        return result

    def _executes(
        self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords, caller: FrameType | None
    ) -> Call:  # fmt: skip
        """What runs the call: JAX's own as written, or another one that donates."""
        donation = self._donation
        found = donation.functions.setdefault(function, Found())
        found.calls += 1
        could = self._could_donate(function, args, kwargs, caller) if caller is not None else {}
        if could:
            found.looks += 1
            found.bytes = found.bytes or sum(map(_bytes_of, (leaf for leaves in could.values() for leaf in leaves)))
            return self._donating(found, could, execute) if donation.is_turned else execute
        numbers = donation.numbers_of(donation.steps.leaves((args, kwargs)))
        found.looks += bool(numbers)
        found.carried |= numbers
        return execute

    def _could_donate(
        self, function: JittedFunction, args: Arguments, kwargs: Keywords, caller: FrameType
    ) -> Donated:  # fmt: skip
        """Arguments that nothing can read behind the call. Where there are none, it is noted why."""
        donation = self._donation
        assert donation.holders is not None
        found = donation.functions[function]
        is_alone = donation.holders.are_held_once(args, kwargs)
        found.why = self._why_not or self._mode()
        if found.why == BY_SCRIPT and is_library(caller.f_code.co_filename):
            found.why = BY_LIBRARY  # what Equinox donates may be nothing
        if found.why:
            return {}
        rebinding = donation.rebindings.at(caller)
        fits = rebinding.given == len(args) and rebinding.keywords == kwargs.keys()
        if not fits or not rebinding.holds_any:
            is_librarys = is_library(caller.f_code.co_filename)
            found.why = BY_LIBRARY if is_librarys else rebinding.why or OTHER_STATEMENT
            return {}
        could: dict[int | str, Sequence[Any]] = {}
        keys: list[int | str] = [*rebinding.numbers, *rebinding.names]
        for key in keys:
            try:
                arrays = donation.holders.arrays_in(args[key] if isinstance(key, int) else kwargs[key])
            except NotAloneError as error:
                found.why = str(error)
                continue
            if not is_alone[key]:
                found.why = HELD
            elif arrays and donation.are_results(arrays):
                found.why = self._why_unfit(function, key, arrays)
                could |= {} if found.why else {key: arrays}
        return could

    def _mode(self) -> str:
        config = self._donation.jax.config
        return CHECKED if any(getattr(config, name, False) for name in MODES) else ""

    def _why_unfit(self, function: JittedFunction, key: int | str, arrays: Sequence[Any]) -> str:
        """Why an argument isn't donated, whoever holds it; it is looked at once."""
        if key not in self._unfit:
            is_on_one = all(len(leaf.sharding.device_set) == 1 for leaf in arrays)
            has_place = self._donation.have_places(function, arrays)
            self._unfit[key] = SEVERAL if not is_on_one else "" if has_place else NO_PLACE
        return self._unfit[key]

    def _donating(self, found: Found, could: Donated, execute: Call) -> Call:
        """What donates these, or less; JAX's own where that isn't known yet, or JAX has refused it."""
        if self._chosen < could.keys() and self._growths < MOST_GROWTHS:
            self._growths += 1
            self._chosen = frozenset(could)
            numbers = tuple(sorted(key for key in could if isinstance(key, int)))
            names = tuple(sorted(key for key in could if isinstance(key, str)))
            try:
                self._donates = self._make(donate_argnums=numbers or None, donate_argnames=names or None)
            except Exception as error:
                found.why = self._why_not = REFUSED.format(error)
                return execute
            found.carried |= self._donation.numbers_of([leaf for leaves in could.values() for leaf in leaves])
        donates, chosen = self._donates, self._chosen
        if donates is None or not chosen or not chosen <= could.keys():
            return execute
        given = [leaf for key in chosen for leaf in could[key]]

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                result = donates(*args, **kwargs)
            except Exception as error:
                if any(leaf.is_deleted() for leaf in given):
                    raise
                found.why = self._why_not = REFUSED.format(error)
            else:
                if any(leaf.is_deleted() for leaf in given):  # what a step doesn't use stays
                    found.donated += 1
                else:
                    found.why = NOT_TAKEN
                return result
            return execute(*args, **kwargs)

        return run


def _caller_of(called: FrameType) -> FrameType | None:
    """What calls a compiled function, by the frame that the call is in; None where that is another one."""
    return called.f_back if called.f_code is Jitted.__call__.__code__ else None


def _bytes_of(leaf: Any) -> int:
    size: int = getattr(leaf, "_base_array", leaf).nbytes  # of keys not every version of JAX tells it
    return size


def _nothing() -> None:
    """In place of a reference."""
