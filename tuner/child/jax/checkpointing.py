"""Losses that are computed again in the backward, segment by segment: the knob "checkpointing".

Where a compiled function takes a gradient, JAX is given the trace of what is differentiated, cut in segments
(``segments``). Only the differentiated arguments are its inputs: all else is closed over, as the script gave it. The
script's function is called once, as in plain JAX, and what it gives beside the loss stays what it is. On a processor
XLA has to keep the barriers around what is computed again (``client``). What XLA compiled is the evidence.
"""

from __future__ import annotations

import functools
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from ..applied import Effect
from ..evidence import Finding
from ..patches import patch
from ..records import Evidence
from ..session import Session
from .compiling import COMPILED
from .functions import code_of
from .graphs import graphs_in, operations_of
from .held import can_go_on, comes_again, computed, held_of
from .segments import SEGMENT, TURN, Library, Segmented, in_segments
from .steps import StepWatch
from .types import Arguments, Call, Keywords

KNOB = "checkpointing"
OWN_NAMES = frozenset({"checkpoint", "remat", "remat2"})
"""JAX's names, by version, for operations that are computed again."""
CALLS_PYTHON = re.compile("callback|debug")
"""Names of operations that call Python, or print."""
DRAWN = "rng_uniform"
"""An operation that gives other numbers each time."""
AGAIN, BARRIER = re.compile(f"rematted_computation[^\"]*({SEGMENT}|{TURN})"), "opt-barrier"
"""In a program of XLA's: that it computes something again, and that it keeps a segment apart from the first time."""
MOST_LOOKS = 16
"""Programs that are compiled behind a trace, by which that must have been compiled."""
NOTHING = "no compiled function takes a gradient"
OWN = "the script computes parts of its loss again itself (jax.checkpoint)"
EFFECTS = "the loss calls Python, prints, or has another effect while it is computed"
DRAWS = "the loss draws numbers that would be others the second time"
SMALL = "what the loss keeps for the backward is hardly less where parts of it are computed again"
CONCRETE = "what is differentiated has values while JAX traces, by which the script may decide"
HELD = "values of the loss are held elsewhere, and may be needed behind it"
OTHER = (
    "autotune can't apply checkpointing to a loss within vmap, or within another gradient:"
    " its values are held elsewhere, and called again it is another loss"
)
FAILED = "its loss can't be computed by parts: {}"
UNKNOWN = "this version of JAX shows its traces in another way: {}"
UNDONE = "XLA merges what is computed again with its first computation"
UNSEEN = "no program that XLA compiled shows what it computes again"


class CheckpointWatch:
    """``wanted``: whether the config asks for it; else the script as written is watched for what speaks against it.

    ``found``: of each function that a compiled one differentiates, by its code, why it isn't computed again; "" where
    it is; both where its traces differ, as of two models.
    """

    def __init__(self, session: Session, steps: StepWatch, jax: Any) -> None:
        self.session, self.steps, self.jax = session, steps, jax
        self.wanted = session.knobs.wanted(KNOB) is True
        self.found: dict[tuple[object, str], str] = {}
        self._told: tuple[object, str] | None = None
        self._library: Library | None = None
        self._none = NOTHING
        self._tracer: type = object
        self._is_concrete: Callable[[Any], bool] = lambda leaf: True
        self._by_script = self._is_cut = self._is_compiled = self._is_kept = False
        self._is_within = self._computes = False
        self._looks = 0

    def install(self) -> None:
        """Right after JAX's import, before anything else is replaced."""
        try:
            if self.wanted:
                self._library = Library(self.jax)
                core = sys.modules["jax._src.core"]
                self._is_concrete, self._tracer, _ = core.is_concrete, core.Tracer, core.Tracer._trace
                for operation in _calls_of_python():
                    patch(operation, "bind", self._refusing)
                self.jax.monitoring.register_event_duration_secs_listener(self._timed)
            elif self.session.is_as_written:
                patch(sys.modules["jax._src.ad_checkpoint"].remat_p, "bind", self._noting)
        except (AttributeError, ImportError, KeyError) as error:
            self._library, self._none = None, UNKNOWN.format(error)
            self.session.note(self._none)

    def _noting(self, original: Call) -> Call:
        """JAX's own operation for it: where it is a part of a gradient in a trace."""

        def bind(*args: Any, **kwargs: Any) -> Any:
            tracing = self.steps.tracing
            self._by_script |= bool(tracing.frames and tracing.differentiates)
            return original(*args, **kwargs)

        return bind

    def _refusing(self, original: Call) -> Call:
        """An operation that calls Python, or prints: a rule for gradients would have it do so a second time."""

        def bind(*args: Any, **kwargs: Any) -> Any:
            if self._computes:
                raise _EffectError
            return original(*args, **kwargs)

        return bind

    # gradients

    def gradient(self, fun: Call, take: Callable[[Call], Call], argnums: Any, *, has_aux: bool) -> Call | None:
        """The gradient of a function that is computed again, for a trace; None where the config doesn't ask for it.

        ``take``: JAX's part in it, for any function.
        """
        library = self._library
        if library is None or not callable(fun):
            return None
        of = fun, code_of(fun) or type(fun)

        @functools.wraps(fun)
        def differentiated(*args: Any, **kwargs: Any) -> Any:
            return self._again(library, of, argnums, args, kwargs, has_aux=has_aux)

        def gradient(*args: Any, **kwargs: Any) -> Any:
            if self._is_within:  # a part of a loss that is computed again itself
                return take(fun)(*args, **kwargs)
            self._is_cut, self._is_within, self._told = False, True, None
            try:
                return self._taken(take, differentiated, of, args, kwargs)
            finally:
                self._is_within = False

        return gradient

    def _taken(
        self, take: Callable[[Call], Call], differentiated: Call, of: tuple[Call, object], args: Arguments,
        kwargs: Keywords,
    ) -> Any:  # fmt: skip
        try:
            return take(differentiated)(*args, **kwargs)
        except Exception as error:
            if not self._is_cut:
                raise  # the script's own, or JAX's about it
            self._tells(of[1], _failed(error))
        return take(of[0])(*args, **kwargs)

    def _tells(self, code: object, why: str) -> None:
        """What becomes of the gradient that is traced now, in place of what was told of it before; what an earlier one
        told as well stays.
        """
        if self._told is not None:
            del self.found[self._told]
        self._told = None if (code, why) in self.found else (code, why)
        self.found[code, why] = why

    def _again(
        self, library: Library, of: tuple[Call, object], argnums: Any, args: Arguments, kwargs: Keywords,
        *, has_aux: bool,
    ) -> Any:  # fmt: skip
        tree, (fun, code) = self.jax.tree_util, of
        numbers = argnums if isinstance(argnums, (tuple, list)) else (argnums,)
        places = sorted({int(number) % len(args) for number in numbers})
        leaves, structure = tree.tree_flatten([args[place] for place in places])
        if not leaves or any(map(self._is_concrete, leaves)):
            self._tells(code, CONCRETE if leaves else SMALL)
            return fun(*args, **kwargs)
        gave, trace = _Given(tree, has_aux=has_aux), _nothing

        def pure(*leaves: Any) -> list[Any]:
            nonlocal trace
            trace = weakref.ref(leaves[0]._trace)
            given = dict(enumerate(args)) | dict(zip(places, tree.tree_unflatten(structure, leaves), strict=True))
            return gave.arrays(fun(*given.values(), **kwargs))

        try:
            closed = library.trace(pure)(*leaves)
        except Exception as error:
            return self._as_written(of, args, kwargs, error)
        if gave.is_refused:
            return gave.refused
        held = held_of(trace(), self._tracer)
        if held and not can_go_on(closed, held, leaves, self._tracer):
            self._tells(code, HELD)
            if not comes_again(library, pure, closed, leaves):
                raise RuntimeError(OTHER)  # it has been called once too often
            return fun(*args, **kwargs)
        self._is_cut = True  # what fails now may be due to that
        if held:
            self._tells(code, HELD)
            return gave.whole(computed(library, closed, held, leaves))
        run = self._in_segments(library, code, closed)
        try:
            self._computes = run is not None
            if run is not None:
                return gave.whole(run(*leaves))
        except Exception as error:
            self._tells(code, EFFECTS if isinstance(error, _EffectError) else _failed(error))
        finally:
            self._computes = False
        return gave.whole(library.function(closed)(*leaves))

    def _as_written(self, of: tuple[Call, object], args: Arguments, kwargs: Keywords, error: Exception) -> Any:
        """What a loss gives that can't be traced by itself: JAX traces the function of a rule for gradients then, which
        it doesn't call as written. Raises the ``error`` where it can't be called as written either: the script's own.
        """
        result = nothing = object()
        with suppress(Exception):
            result = of[0](*args, **kwargs)
        if result is nothing:
            raise error
        self._tells(of[1], _failed(error))
        return result

    def _in_segments(self, library: Library, code: object, closed: Any) -> Callable[..., list[Any]] | None:
        made: Segmented | None = None
        try:
            why = _obstacle_in(closed)
            if not why:
                made = in_segments(library, closed)
                why = "" if made is not None else SMALL
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = UNKNOWN.format(f"{type(error).__name__}: {error}")
        self._tells(code, why)
        if made is None:
            return None
        self._looks = MOST_LOOKS
        return made.run

    # what XLA made of it

    def _timed(self, event: str, seconds: float, **about: Any) -> None:
        if event != COMPILED or not self._looks:
            return
        self._looks -= 1
        for platform, program in self._programs():
            again = {each[1] for each in AGAIN.finditer(program)}
            if again:
                self._is_compiled, self._looks = True, 0
                self._is_kept |= platform != "cpu" or SEGMENT not in again or BARRIER in program

    def _programs(self) -> Iterator[tuple[str, str]]:
        """The text of each that is there, and for which kind of device it is."""
        try:
            for platform in sorted(self.steps.devices.platforms) or [self.jax.default_backend()]:
                for executable in self.jax.local_devices(backend=platform)[0].client.live_executables():
                    for module in executable.hlo_modules():
                        yield platform, module.to_string()
        except (AttributeError, RuntimeError):
            self._looks = 0

    # what is told

    @property
    def _changed(self) -> int:
        return sum(not why for why in self.found.values())

    @property
    def _obstacle(self) -> str:
        """Why nothing is computed again; "" where something is."""
        if not self._changed:
            return next(iter(self.found.values()), self._none)
        return UNDONE if self._is_compiled and not self._is_kept else ""

    def written(self) -> None:
        """The script's own value, or why it is left out."""
        facts = self.session.facts
        if self.steps.tracing.gradients and not self._by_script:
            facts.as_written[KNOB] = False
        else:
            facts.left_out[KNOB] = OWN if self._by_script else NOTHING

    def report(self) -> None:
        """Evidence: of which losses segments are computed again, as XLA compiled them."""
        knobs, sites = self.session.knobs, max(1, len(self.found))
        if KNOB not in knobs.requested:
            return
        if not self.wanted:
            knobs.compare(KNOB, False)
        elif not self._changed:
            knobs.inapplicable(KNOB, self._obstacle, sites=sites)
        elif not self._is_compiled:
            finding = Finding(Evidence.UNVERIFIABLE, UNSEEN, sites=sites, changed=self._changed)
            knobs.report(KNOB, finding)
        else:
            knobs.compare(KNOB, self._is_kept, sites=sites, changed=self._changed, why=self._obstacle)

    def effects(self) -> dict[str, Effect]:
        """For ``autotune run``."""
        if self._changed and not self._is_compiled:
            return {KNOB: Effect(self._changed, UNSEEN, is_unseen=True)}
        why = self._obstacle
        return {KNOB: Effect(0 if why else self._changed, why)}


def _obstacle_in(closed: Any) -> str:
    """Why what is traced isn't computed again; "" where it may be."""
    operations = list(operations_of(closed.jaxpr))
    names = {each.primitive.name for each in operations}
    if any(each.primitive.name in OWN_NAMES and not _is_ours(each) for each in operations):
        return OWN
    if closed.jaxpr.effects or any(map(CALLS_PYTHON.search, names)):
        return EFFECTS
    return DRAWS if DRAWN in names else ""


def _is_ours(operation: Any) -> bool:
    """Whether it is a segment: of a gradient that is taken in a compiled part of the loss."""
    inner = (each for graph in graphs_in(operation) for each in operations_of(graph))
    return any(name in str(each.source_info.name_stack) for each in inner for name in (SEGMENT, TURN))


def _calls_of_python() -> list[Any]:
    """JAX's operations that call Python or print."""
    modules = map(sys.modules.__getitem__, ("jax._src.callback", "jax._src.debugging"))
    found = {id(each): each for module in modules for each in vars(module).values()}.values()
    return [
        each for each in found
        if hasattr(each, "bind") and not isinstance(each, type) and CALLS_PYTHON.search(str(getattr(each, "name", "")))
    ]  # fmt: skip


class _EffectError(Exception):
    """A rule for gradients calls Python, or prints."""


def _failed(error: Exception) -> str:
    return FAILED.format(f"{type(error).__name__}: {error}".partition("\n")[0])


def _nothing() -> None:
    return None


class _Given:
    """What a differentiated function gave: its arrays, which JAX computes, and all else, which stays as it is.

    ``refused``: what JAX takes no gradient of, and says so.
    """

    def __init__(self, tree: Any, *, has_aux: bool) -> None:
        self._tree = tree
        self._has_aux = has_aux
        self.is_refused, self.refused = False, None
        self._structure: Any = None
        self._others: dict[int, Any] = {}

    def arrays(self, result: Any) -> list[Any]:
        """The value, and the arrays beside it."""
        is_whole = not self._has_aux or (isinstance(result, (tuple, list)) and len(result) == 2)
        value, beside = result if self._has_aux and is_whole else (result, None)
        if not is_whole or not self._tree.all_leaves([value]) or getattr(value, "shape", None):
            self.is_refused, self.refused = True, result
            return []
        leaves, self._structure = self._tree.tree_flatten(beside)
        self._others = {at: leaf for at, leaf in enumerate(leaves) if not hasattr(leaf, "aval")}
        return [value, *(leaf for at, leaf in enumerate(leaves) if at not in self._others)]

    def whole(self, computed: list[Any]) -> Any:
        """The same, of what JAX computed."""
        value, *arrays = computed
        if not self._has_aux:
            return value
        made, others = iter(arrays), self._others
        leaves = [others[at] if at in others else next(made) for at in range(len(arrays) + len(others))]
        return value, self._tree.tree_unflatten(self._structure, leaves)
