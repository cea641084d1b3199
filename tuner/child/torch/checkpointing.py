"""Activation checkpointing: the blocks that a model repeats keep what they are given, and are computed again.

What lies between a block's inputs and its outputs isn't kept for the backward, which computes it anew, with the random
numbers and the precision of the first time (``torch.utils.checkpoint``). So a block is right that leaves nothing behind
when it is called: one with running statistics would take each batch twice. The script as written is watched for that.
"""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

from ..evidence import Finding
from ..records import Evidence
from ..session import Session
from .compiling import MOST_MODELS, repeated_blocks
from .parts import CHANGES, HOOKED, SHARDED, in_backward
from .rows import versions
from .state import State, hooked, same_state, state_of
from .types import Module

KNOB = "checkpointing"
NO_BLOCKS = "the model has no list of blocks of one kind"
NOT_WATCHED = "its blocks were not called often enough to see what they leave behind"
OWN = "the script computes parts of its model again itself"
COMPILED = "the script compiles its model"
STATISTICS = "a norm would take each batch into its running statistics twice"
KEEPS = "a block keeps something from one call to the next, and would be called twice"
DRAWS = "a block draws random numbers that aren't PyTorch's, and would draw others"
GIVEN = "a block is given an object that a call may change, and would be called twice"
COPIED = "DataParallel copies its blocks for each call"
WATCHED_CALL = 1
"""Of the script as written: the first call of a model may set something up."""
LOOKED_AT = 2
"""The call of a block, by number, that is looked at where it is checkpointed: the first one may set something up."""
_PLAIN = (bool, int, float, str, type(None))


@dataclass
class _Model:
    """One model. ``refused``: why its blocks aren't checkpointed; ``watched``: whether that was looked for.

    ``norms``: of each block, the layers that may keep running statistics. ``calls``: place of a block → its calls that
    were to be computed again; ``again``: places that were.
    """

    blocks: list[weakref.ref[Module]]
    refused: str = ""
    watched: bool = False
    norms: list[list[weakref.ref[Module]]] = field(default_factory=list)
    calls: dict[int, int] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)


class CheckpointWatch:
    """``wanted``: whether the config asks for it; else the script as written is watched for what speaks against it.

    Where ``torch.compile`` is called blocks stay as they are.
    """

    def __init__(self, session: Session, torch: ModuleType) -> None:
        self.torch = torch
        self.wanted = session.knobs.wanted(KNOB) is True
        self._session = session
        self._models: weakref.WeakKeyDictionary[Module, _Model] = weakref.WeakKeyDictionary()
        self._seen: list[_Model] = []
        self._again = self._by_script = False

    # the calls

    def around(self, module: Module, calls: int, *, compiled: bool) -> AbstractContextManager[None]:
        """Around a training call of an outermost module, of which there were so many before. ``compiled``: the script
        calls the compiler, which would compile a block anew that is called in another way.
        """
        is_watched = self._session.is_as_written and (len(self._seen) < MOST_MODELS or module in self._models)
        if calls == 0 and (self.wanted or is_watched):
            model = self._meet(module, compiled=compiled)
            if self.wanted and not model.refused:
                self._put(model, self._checkpointed)
        elif calls == WATCHED_CALL and is_watched and module in self._models and not compiled:
            return self._watching(self._models[module])
        return nullcontext()

    def recomputes(self) -> None:
        """A module was called within a backward."""
        self._by_script |= not self._again

    def _meet(self, module: Module, *, compiled: bool) -> _Model:
        blocks: list[Any] = repeated_blocks(self.torch, module)
        model = self._models[module] = _Model([weakref.ref(block) for block in blocks])
        self._seen.append(model)
        name = type(module).__name__
        if "FullyShardedDataParallel" in name or name.startswith("FSDP"):
            model.refused = SHARDED
        elif name == "DataParallel":
            model.refused = COPIED
        elif compiled or any(block._compiled_call_impl is not None for block in blocks):
            model.refused = COMPILED
        elif self.wanted:
            model.refused = next(filter(None, map(self._obstacle, blocks)), "")
            model.norms = [list(map(weakref.ref, self._norms_in(block))) for block in blocks]
        return model

    def _put(self, model: _Model, run: Callable[..., Any] | None) -> None:
        """Where ``Module.compile`` puts what it compiles: PyTorch leaves that out of copies and checkpoints."""
        for place, refer in enumerate(model.blocks):
            block: Any = refer()
            if block is not None and run is not None:
                block._compiled_call_impl = partial(run, model, place, refer)
            elif block is not None:
                vars(block).pop("_compiled_call_impl", None)

    def _is_left_alone(self, block: Module) -> bool:
        torch = self.torch
        return not block.training or not torch.is_grad_enabled() or in_backward(torch) or torch.compiler.is_compiling()

    # the script as written

    @contextmanager
    def _watching(self, model: _Model) -> Iterator[None]:
        if model.refused:
            yield
            return
        self._put(model, self._watched)
        try:
            yield
        finally:
            self._put(model, None)

    def _watched(
        self, model: _Model, place: int, refer: weakref.ref[Module], *args: object, **kwargs: object
    ) -> object:
        block: Any = refer()
        if self._is_left_alone(block) or model.refused:
            return block._call_impl(*args, **kwargs)
        given = (*args, *kwargs.values())
        model.refused, model.watched = self._obstacle(block) or _obstacle_of(self.torch, given), True
        with self._looking(model, block):
            before = versions(self.torch, (args, kwargs))
            result = block._call_impl(*args, **kwargs)
            if versions(self.torch, (args, kwargs)) != before:
                model.refused = model.refused or CHANGES
        return result

    def _obstacle(self, block: Module) -> str:
        """What a block shows by itself that speaks against it; "" for nothing."""
        if any(map(_keeps_statistics, self._norms_in(block))):
            return STATISTICS
        return HOOKED if hooked(block) else ""

    def _norms_in(self, block: Module) -> list[Any]:
        """Its layers that may keep running statistics, those of batches and those of instances."""
        kinds, parts = self.torch.nn.modules.batchnorm._NormBase, block.modules()
        return [part for part in parts if isinstance(part, kinds)]

    @contextmanager
    def _looking(self, model: _Model, block: Module) -> Iterator[None]:
        """Whether a call of the block leaves anything behind, but for PyTorch's own random numbers."""
        before, drawn = _state(block), _drawn()
        yield
        after = _state(block)
        if before is None or after is None or not same_state(before, after):
            model.refused = model.refused or KEEPS
        elif drawn != _drawn():
            model.refused = model.refused or DRAWS

    # the config

    def _checkpointed(
        self, model: _Model, place: int, refer: weakref.ref[Module], *args: object, **kwargs: object
    ) -> object:
        block: Any = refer()
        if self._is_left_alone(block):
            return block._call_impl(*args, **kwargs)
        model.refused = model.refused or _obstacle_of(self.torch, (*args, *kwargs.values()))
        if any(_keeps_statistics(refer_norm()) for refer_norm in model.norms[place]):
            model.refused = model.refused or STATISTICS  # it was frozen when the model was met
        if model.refused:
            return block._call_impl(*args, **kwargs)
        from torch.utils.checkpoint import checkpoint

        model.calls[place] = model.calls.get(place, 0) + 1
        look = self._looking(model, block) if model.calls[place] == LOOKED_AT else nullcontext()
        is_first = True

        def compute(*values: object) -> object:
            nonlocal is_first
            named = dict(zip(kwargs, values[len(args) :], strict=True))
            if is_first:
                is_first = False
                with look:
                    return block._call_impl(*values[: len(args)], **named)
            model.again.add(place)
            with self._within_backward(model, block):
                return block._call_impl(*values[: len(args)], **named)

        # PyTorch keeps the numbers of the generators of those devices on which arguments without a name lie. It raises
        # an error where these are changed in place before the backward.
        return checkpoint(compute, *args, *kwargs.values(), use_reentrant=False, preserve_rng_state=True)

    @contextmanager
    def _within_backward(self, model: _Model, block: Any) -> Iterator[None]:
        """A block that was seen to leave something behind was called before that: its buffers stay as they are."""
        buffers: list[Any] = list(block.buffers()) if model.refused else []
        kept, self._again = [(buffer, buffer.clone()) for buffer in buffers], True
        try:
            yield
        finally:
            self._again = False
            with self.torch.no_grad():
                for buffer, copy in kept:
                    buffer.copy_(copy)

    # what is told

    @property
    def sites(self) -> tuple[int, int]:
        """The blocks there are, and those that were computed again in a backward."""
        return sum(len(model.blocks) for model in self._seen), sum(len(model.again) for model in self._seen)

    @property
    def obstacle(self) -> str:
        """Why there is nothing to checkpoint; "" where there is, or nothing was called yet."""
        if self._seen and not self.sites[0]:
            return NO_BLOCKS
        refused = [model.refused for model in self._seen if model.blocks]
        return OWN if self._by_script else next(filter(None, refused), "")

    def written(self, *, compiled: bool) -> None:
        """The facts of the script's own model."""
        facts, with_blocks = self._session.facts, [model for model in self._seen if model.blocks]
        reason = COMPILED if compiled else self.obstacle
        if not reason and not all(model.watched for model in with_blocks):
            reason = NOT_WATCHED
        if reason:
            facts.left_out[KNOB] = reason
        elif with_blocks:
            facts.as_written[KNOB] = False

    def report(self) -> None:
        """Evidence, where the config asks for it."""
        knobs = self._session.knobs
        if KNOB not in knobs.requested:
            return
        blocks, again = self.sites
        called = sum(len(model.calls) for model in self._seen)
        if not self.wanted:
            knobs.compare(KNOB, again > 0)
        elif self.obstacle:
            knobs.inapplicable(KNOB, self.obstacle, sites=blocks)
        elif not called:
            knobs.report(KNOB, Finding(Evidence.UNVERIFIABLE, "none of its blocks was called to train", sites=blocks))
        else:
            done = called == again
            reason = f"{again} of {called} blocks were computed again in a backward"
            kind = Evidence.VERIFIED if done else Evidence.CONTRADICTED
            knobs.report(KNOB, Finding(kind, reason, done, sites=blocks, changed=again))


def _keeps_statistics(norm: Any) -> bool:
    return norm is not None and bool(norm.training and norm.track_running_stats)


def _obstacle_of(torch: ModuleType, values: tuple[object, ...]) -> str:
    """What a block is given that speaks against it: a cache of a model's, say, to which a call adds something."""
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if type(value) is tuple:
            waiting += value
        elif not isinstance(value, (*_PLAIN, torch.Tensor)):
            return GIVEN
    return ""


def _state(block: Module) -> State | None:
    try:
        return state_of(block)
    except Exception:  # whatever the script's own attributes raise
        return None


def _drawn() -> list[object]:
    """Where Python's and NumPy's generators stand; PyTorch's are put back by its checkpoint."""
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else ()
    return [random.getstate(), *(part.tobytes() if hasattr(part, "tobytes") else part for part in of_numpy)]
