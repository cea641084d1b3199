"""Computes a batch in parts: the outermost training call of a module sees some of the batch's rows at a time.

To the script nothing changes: it has one batch, one loss and one step, as it wrote them. So the length of its loader,
its schedules, averages, clipping and everything else that counts batches or steps stay what they are, to the real end
of a training; and so do losses that are no mean over the batch. What is spared is the work on many rows at once; what
all parts computed is kept until the one backward.

This is right where a module's answer for a row hangs on that row alone. A module is therefore first watched with whole
batches (does it keep anything from one call to the next? does the script listen inside of it?), and then asked, without
gradients and with the random numbers put back: does its answer for some rows stay while all others are exchanged? Do
its answers for the parts make up that for the whole? Unless all of this is so it goes on being called with the whole.
Where a mode, an attribute or an argument changes later it is watched and asked again (``conditions``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from ..session import Session
from .compiling import MOST_MODELS
from .conditions import Case, ConditionsReader, Todo, Trust
from .draws import Draws
from .rows import (
    Given,
    UnsplittableError,
    alike,
    copied,
    count,
    exchanged,
    is_coarse,
    joined,
    numbers,
    part,
    signature,
    some,
    versions,
)
from .state import State, hooked, same_state, state_of
from .types import Module

KNOB = "grad_accumulation"
Forward = Callable[..., Any]
NOT_ALONE = "the model's answer for a sample depends on the other samples of its batch"
NOT_THE_WHOLE = "the model's answers for the parts of a batch don't make up its answer for the whole"
KEEPS = "the model keeps something from one call to the next"
CHANGES = "the model changes what it is given in place"
HOOKED = "the script has hooks on its model's modules"
SHARDED = "its parameters are sharded"
EXCHANGES = "it calls a DistributedDataParallel within, which exchanges gradients for each of its calls"
WATCHED_CALLS = 2
"""Calls with the whole batch before a module is asked: the first one may set something up."""
LOOK_APART = 1024
"""Calls between two looks at what a module holds, at most."""
AMONG_OTHERS, IN_PARTS = (1e-4, 1e-2), (1e-3, 5e-2)
"""How far the answers for the same rows may lie apart, as shares of the largest value: among other rows of the same
number, and in a part of them; each with full float32, and with fewer digits.
"""


@dataclass
class _Root:
    """An outermost module. ``refused``: why it isn't called in parts; ``left_whole``: why its newest call wasn't.

    ``trust``: in which cases it was asked. ``split``: outlines of arguments whose newest call was made in parts.
    ``untold``: whether nothing was said yet of that it isn't called in parts any more. ``is_watched``: whether calls of
    it with whole batches are looked at, as those of the first modules.
    """

    calls: int = 0
    refused: str = ""
    left_whole: str = ""
    trust: Trust = field(default_factory=Trust)
    conditions: ConditionsReader = field(default_factory=ConditionsReader)
    split: set[str] = field(default_factory=set)
    in_parts: bool = False
    untold: bool = False
    wraps: bool = False
    is_watched: bool = True


@dataclass(frozen=True)
class _Call:
    """One call: ``rows`` of a batch, ``size`` of them in a part. ``forward`` takes what ``given`` holds."""

    torch: ModuleType
    forward: Forward
    given: Given
    rows: int
    size: int

    def whole(self) -> Any:
        """What it gives for the whole batch."""
        return self.forward(*self.given[0], **self.given[1])

    def in_parts(self) -> Any:
        """The same from the parts, one after the other. Raises ``UnsplittableError`` where they don't make up one."""
        edges = [(start, min(start + self.size, self.rows)) for start in range(0, self.rows, self.size)]
        pieces = []
        for start, stop in edges:
            args, kwargs = part(self.torch, self.given, self.rows, start, stop)
            pieces.append(self.forward(*args, **kwargs))
        return joined(self.torch, pieces, [stop - start for start, stop in edges])

    def copy(self) -> _Call:
        """With tensors of its own."""
        return replace(self, given=copied(self.torch, self.given))

    def with_others(self, start: int, stop: int) -> _Call:
        """With other rows than those from ``start`` to ``stop``, and tensors of its own."""
        return replace(self, given=exchanged(self.torch, self.given, self.rows, start, stop)).copy()


class PartsWatch:
    """``parts``: how many make a batch; 1 where nothing is to be split. Under measurement it says what could be."""

    def __init__(self, session: Session, torch: ModuleType, rounds: Callable[[], bool]) -> None:
        self.torch = torch
        self.parts = int(session.knobs.wanted(KNOB) or 1)
        self.inner: Module | None = None
        """What a wrapper for several ranks calls in turn: that is called in parts, and the wrapper once."""
        self._measuring = session.measuring
        self._rounds = rounds
        given = session.request.config.get("batch_size", session.request.knowledge.as_written.get("batch_size"))
        self._size = given if type(given) is int else 0
        """The rows of a part, as far as they are said; else 0."""
        # In a screen the first step's gradient is compared. Its config has run as a trial: the model was watched there.
        self._watched_calls = WATCHED_CALLS if session.request.seed is None else 0
        self._roots: weakref.WeakKeyDictionary[Module, _Root] = weakref.WeakKeyDictionary()
        self._seen: list[_Root] = []
        """Of the first modules: one may be gone by the time that anyone asks."""
        self._due = self._done = False
        self._due_backwards = self._done_backwards = 0
        self._tell = session.note
        session.knobs.on_delegation(self._delegated)

    def _delegated(self, knob: str) -> None:
        if knob == KNOB:
            self.parts = 1

    # the calls

    def decided(self, module: Module) -> bool:
        """Whether it is known how the module is called: a compiler should see no other shapes before."""
        root = self._roots.get(module)
        return self.parts == 1 or (root is not None and bool(root.refused or root.trust or root.wraps))

    def run(self, module: Module, forward: Forward, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """What ``forward(*args, **kwargs)`` gives, computed in parts where that is the same."""
        root = self._roots.get(module)
        if root is None:
            root = self._roots[module] = _Root()
            root.is_watched = len(self._seen) < MOST_MODELS
            if root.is_watched:
                self._seen.append(root)
        if in_backward(self.torch):
            return self._again(root, forward, (args, kwargs))
        root.calls += 1
        if self._stays_whole(root, module):
            return forward(*args, **kwargs)
        if self.parts == 1 or root.calls <= self._watched_calls:
            return self._watched(root, module, forward, (args, kwargs))
        return self._in_parts(root, module, forward, (args, kwargs))

    def _stays_whole(self, root: _Root, module: Module) -> bool:
        name, parallel = type(module).__name__, self.torch.nn.parallel.DistributedDataParallel
        if isinstance(module, parallel):
            wrapper: Any = module
            self.inner, root.wraps = wrapper.module, True
            return True
        if root.calls == 1 and any(isinstance(inner, parallel) for inner in module.modules()):
            root.refused = EXCHANGES
        if "FullyShardedDataParallel" in name or name.startswith("FSDP"):
            root.refused = SHARDED
        if root.refused:
            self._due = True
            if root.untold:
                root.untold = False
                self._tell(f"{KNOB}: a {name} is given whole batches from now on: {root.refused}")
            return True
        return self.parts == 1 and not (self._measuring and root.is_watched)

    def _watched(self, root: _Root, module: Module, forward: Forward, given: Given, *, always: bool = False) -> Any:
        """What it gives for the whole batch, looked at; ``always``: what the module holds, too, which is due rarely."""
        before, written = _looked_at(root, module, always=always), versions(self.torch, given)
        result = forward(*given[0], **given[1])
        if versions(self.torch, given) != written:
            root.refused = CHANGES
        elif before is not None:
            root.refused = root.refused or self._obstacle(root, module, before, given, result)
        return result

    def _obstacle(self, root: _Root, module: Module, before: State, given: Given, result: object) -> str:
        """What shows in a call with the whole batch that speaks against parts; "" for nothing."""
        try:
            rows = count(self.torch, given)
            part(self.torch, given, rows, 0, rows)
            joined(self.torch, [result], [rows])
            if root.calls == 1:
                return ""  # it may have set something up
            if hooked(module):
                return HOOKED
            return "" if same_state(before, state_of(module)) else KEEPS
        except Exception as error:
            return _raised(error)

    def _in_parts(self, root: _Root, module: Module, forward: Forward, given: Given) -> Any:
        todo = Todo.PARTS
        before = _looked_at(root, module)
        try:
            call = self._call_of(forward, given)
            if call.rows > call.size:
                case = self._case(root, module, call)
                root.split.discard(case.outline)
                todo = Todo.PARTS if root.refused else root.trust.todo(case)
                self._due |= todo is not Todo.WATCH
                if todo is Todo.ASK:
                    root.refused = self._doubt(module, call)
                    if not root.refused:
                        root.trust.add(case)
                if todo is not Todo.WATCH and not root.refused:
                    result = call.in_parts()
                    root.split.add(case.outline)
                    self._done = root.in_parts = root.untold = True
                    if before is not None and root.calls > 1 and not same_state(before, state_of(module)):
                        self._was_wrong(root)
                    return result
        except UnsplittableError as error:
            root.left_whole = str(error)  # of this call only, such as the last one of an epoch
        except Exception as error:
            root.refused = _raised(error)
        if todo is Todo.WATCH:
            return self._watched(root, module, forward, given, always=True)
        return forward(*given[0], **given[1])

    def _case(self, root: _Root, module: Module, call: _Call) -> Case:
        conditions = root.conditions.read(module)
        if conditions.hooked:
            root.refused = HOOKED
        outline = signature(self.torch, call.given, call.rows)
        return Case(outline, conditions.kind, hash((conditions.numbers, *numbers(call.given))))

    def _was_wrong(self, root: _Root) -> None:
        """What the module kept of earlier calls in parts is no longer what it keeps of whole ones."""
        root.refused, root.in_parts = KEEPS, False
        self._done_backwards, self._done = 0, False

    def _again(self, root: _Root, forward: Forward, given: Given) -> Any:
        """Within a backward a checkpoint computes anew what it threw away: as it was computed the first time."""
        if self.parts > 1 and root.split:
            with suppress(UnsplittableError):
                call = self._call_of(forward, given)
                if call.rows > call.size and signature(self.torch, given, call.rows) in root.split:
                    return call.in_parts()
        return forward(*given[0], **given[1])

    def _call_of(self, forward: Forward, given: Given) -> _Call:
        rows = count(self.torch, given, self._size * self.parts)
        return _Call(self.torch, forward, given, rows, self._size_of_part(rows))

    def _size_of_part(self, rows: int) -> int:
        """A smaller last batch has fewer parts of the same size; several rows a sample make larger parts."""
        return self._size if 0 < rows <= self._size * self.parts else max(1, -(-rows // self.parts))

    # the question

    def _doubt(self, module: Module, call: _Call) -> str:
        """Why calls of this kind can't be taken in parts; "" where they can. Leaves tensors as they were."""
        torch, drawn = self.torch, Draws(self.torch)
        held: list[Any] = list(module.modules())
        buffers = [(b, b._version, b.clone()) for each in held for b in each._buffers.values() if _is_versioned(b)]
        # Under autocast, copies of the weights that are made without gradients must serve no training call.
        torch.clear_autocast_cache()
        try:
            with torch.no_grad():
                doubt = self._compared(module, call, drawn)
        except Exception as error:
            doubt = _raised(error)
        finally:
            drawn.put_back()
            torch.clear_autocast_cache()
            with torch.no_grad():
                for buffer, version, copy in buffers:
                    if buffer._version != version:
                        buffer.copy_(copy)
        return doubt

    def _compared(self, module: Module, call: _Call, drawn: Draws) -> str:
        torch, rows, size = self.torch, call.rows, call.size
        whole = call.copy().whole()
        before = state_of(module)  # where nothing was watched, its first call may have set something up
        joined(torch, [whole], [rows])
        is_rounded = self._rounds() or is_coarse(torch, whole)
        is_random = drawn.moved()
        for start, stop in ((0, size), (rows - size, rows)):
            drawn.put_back()
            other = call.with_others(start, stop).whole()
            if not alike(
                torch, some(torch, whole, start, stop), some(torch, other, start, stop), AMONG_OTHERS[is_rounded]
            ):
                return NOT_ALONE
        if not same_state(before, state_of(module)):
            return KEEPS
        drawn.put_back()
        if not is_random:
            return "" if alike(torch, whole, call.copy().in_parts(), IN_PARTS[is_rounded]) else NOT_THE_WHOLE
        with evaluating(module):
            whole = call.copy().whole()
            if drawn.moved():
                return ""  # it always draws: that each row stands alone has to do
            return "" if alike(torch, whole, call.copy().in_parts(), IN_PARTS[is_rounded]) else NOT_THE_WHOLE

    # the answer

    def backward_ran(self) -> None:
        """Counts the backwards that a call in parts preceded, of those that one should have preceded."""
        self._due_backwards += self._due
        self._done_backwards += self._due and self._done
        self._due = self._done = False

    @property
    def observed(self) -> int:
        """In how many parts batches were computed."""
        reached = self._due_backwards and self._done_backwards >= 0.9 * self._due_backwards
        return self.parts if reached else 1

    @property
    def sites(self) -> tuple[int, int]:
        """The modules that are called to train, and those of them that were called in parts."""
        return len(self._models), sum(root.in_parts for root in self._models)

    def obstacle(self) -> str:
        """Why no batch can be computed in parts here; "" where one can, or where no module was called."""
        reasons = [root.refused or root.left_whole for root in self._models if not root.in_parts]
        return reasons[0] if reasons and len(reasons) == len(self._models) and all(reasons) else ""

    @property
    def _models(self) -> list[_Root]:
        """Those that were seen, without what wraps one for several ranks."""
        return [root for root in self._seen if not root.wraps]


def _looked_at(root: _Root, module: Module, *, always: bool = False) -> State | None:
    """What the module holds, at its first calls and more rarely from then on: a look goes through all of it."""
    if not always and root.calls & (root.calls - 1) and root.calls % LOOK_APART:
        return None
    try:
        return state_of(module)
    except Exception as error:
        root.refused = _raised(error)
        return None


def _is_versioned(tensor: Any) -> bool:
    return tensor is not None and not tensor.is_inference()


def _raised(error: Exception) -> str:
    if isinstance(error, UnsplittableError):
        return str(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"a part of a batch can't be computed by itself: {text:.120}"


@contextmanager
def evaluating(module: Module) -> Iterator[None]:
    """Without dropout. Not by ``eval()``, of which a model may make something of its own."""
    modules: list[Any] = list(module.modules())
    flags = [each.training for each in modules]
    for each in modules:
        each.training = False
    try:
        yield
    finally:
        for each, flag in zip(modules, flags, strict=True):
            each.training = flag


def in_backward(torch: ModuleType) -> bool:
    """Whether this thread runs a backward at present."""
    return bool(torch._C._current_graph_task_id() != -1)
