"""What is compiled of a model: all of it, or its repeated blocks, which are compiled once for all of one kind.

And whether shapes vary, of which a compiler may be told ahead: it compiles the first ones for good otherwise, and a
second time for all the others once it has met them.
"""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

from ..evidence import Finding
from ..records import Evidence
from . import compiler
from .outputs import with_tensors
from .rows import tensors
from .types import Keywords, Module, Node, Result

KNOB = "compile"
NOT_COMPILED = ("off", False)
CUDA_GRAPHS = "reduce-overhead"
"""The mode of torch.compile that replays CUDA graphs."""
REGIONAL = "regional"
"""The blocks that a model repeats are compiled, each kind once: less to compile, and less that is fused."""
DYNAMIC = "dynamic"
"""All of a model, for whatever shapes there are."""
SHAPES_VARY = 3
"""A loader's last batch may be shorter: with so many shapes more than that varies."""
MOST_SHAPES = 64
MOST_MODELS = 64
"""Models whose first call is looked at: a script may make a copy of its model for each step, as in meta-learning."""
MOST_LOOKS = 8
"""Calls of a model with nothing to train before which it is asked again."""
_OF_A_GRAPH = "CompiledFunction"
"""What the gradient of a compiled graph is called, which its outputs carry."""
NO_GRADIENT = "what it gives shows no gradient, by which compiled code is told"
_MOST_NODES = 20_000
_numbers = itertools.count(1)
Shape = tuple[tuple[int, ...], ...]
"""Of the tensors of one call."""


@dataclass
class Shapes:
    """The shapes that a model is given in training; those ``compiled`` for, and the graphs that the first one took."""

    seen: set[Shape] = field(default_factory=set)
    compiled: set[Shape] = field(default_factory=set)
    graphs_at_first: int | None = None

    def given(self, torch: ModuleType, values: Iterable[object], *, compiled: bool) -> None:
        """A call with these arguments begins."""
        if len(self.seen) < MOST_SHAPES:
            shape = tuple(tuple(value.shape) for value in values if isinstance(value, torch.Tensor))
            self.seen.add(shape)
            if compiled:
                self.compiled.add(shape)

    def compiled_call_ended(self) -> None:
        """A call of what was compiled ended."""
        if self.graphs_at_first is None:
            self.graphs_at_first = compiler.counts().graphs

    @property
    def vary(self) -> bool:
        """Whether more than a last batch differs."""
        return len(self.seen) >= SHAPES_VARY

    def recompiled(self) -> bool | None:
        """Whether each further shape was compiled for by itself; None where there was no further one."""
        further = len(self.compiled) - 1
        if self.graphs_at_first is None or further < 1:
            return None
        return compiler.counts().graphs - self.graphs_at_first >= further


@dataclass
class CompiledCalls:
    """What was compiled of one model, ``of`` it all or its blocks: whether their calls run what was compiled.

    The compiler gives code up without an error, which runs as written from then on; its counts don't say whose that is.
    ``looks``: the calls that follow are looked at. ``ran``: place → whether the newest such call ran compiled code, by
    the gradient that it gave; None where it gave none. ``looked``: some were looked at.
    """

    of: int
    looks: bool = False
    looked: bool = False
    ran: dict[int, bool | None] = field(default_factory=dict)

    def look(self, *, now: bool) -> None:
        """Whether the calls that follow are looked at: at least one of the whole model."""
        self.looks = now
        self.looked |= now

    def call(
        self, torch: ModuleType, place: int, run: Callable[..., Any], args: tuple[object, ...], kwargs: Keywords
    ) -> Any:
        """Calls what was compiled of that place."""
        if not self.looks:
            return run(*args, **kwargs)
        before = gradients_of(torch, (args, kwargs))
        result = run(*args, **kwargs)
        self.ran[place] = runs_compiled(torch, before, result)
        return result

    @property
    def silent(self) -> int:
        """Places of which nothing shows whether they run compiled code."""
        return sum(ran is None for ran in self.ran.values()) if self.looked else 0

    @property
    def running(self) -> int:
        """Places that were seen to run compiled code; all of them as long as no call was looked at."""
        return sum(ran is True for ran in self.ran.values()) if self.looked else self.of


def not_running(compiled: Sequence[CompiledCalls]) -> str:
    """For people: that nothing of what was compiled is run."""
    blocks = sum(calls.of for calls in compiled)
    return f"none of {blocks} blocks runs compiled" if blocks > 1 else "the model runs without what was compiled"


def compile_finding(compiled: Sequence[CompiledCalls], *, only_graphs: bool) -> Finding:
    """What the compiler did for these models, whose calls reach the training, and whether they run it.

    ``only_graphs``: in a mode that adds nothing but CUDA graphs.
    """
    counts, sites = compiler.counts(), sum(calls.of - calls.silent for calls in compiled)
    running = sum(calls.running for calls in compiled)
    if not counts.graphs:
        return Finding(Evidence.CONTRADICTED, compiler.why_not_compiled(), counts.graphs, sites)
    if counts.without_cuda_graph and only_graphs:
        reason = f"{counts.without_cuda_graph} graphs can't be run as CUDA graphs, which is all that this mode adds"
        return Finding(Evidence.CONTRADICTED, reason, counts.graphs, sites)
    if not sites and any(calls.of for calls in compiled):
        return Finding(Evidence.UNVERIFIABLE, NO_GRADIENT, counts.graphs)
    if not running:
        return Finding(Evidence.CONTRADICTED, not_running(compiled), counts.graphs, sites, 0)
    given_up = ", and some code given up after too many compilations" if counts.given_up else ""
    reason = f"{counts.graphs} graphs, {counts.breaks} breaks{given_up}"
    reason += f"; {running} of {sites} blocks run compiled" if running < sites else ""
    return Finding(Evidence.VERIFIED, reason, counts.graphs, sites, running)


def runs_compiled(torch: ModuleType, before: set[Node], result: object) -> bool | None:
    """Whether compiled code lies between what a call was given and what it gave; None where no gradient tells.

    ``before``: the gradients of what it was given.
    """
    nodes = gradients_of(torch, result) - before
    return _is_any_compiled(nodes, before) if nodes else None


def gradients_of(torch: ModuleType, value: object) -> set[Node]:
    """What the tensors in a value go back through in a backward."""
    nodes: set[Node] = set()

    def note(tensor: Any) -> Any:
        nodes.update({tensor.grad_fn} - {None})
        return tensor

    with suppress(Exception):  # a subclass of tensors, or of mappings, may answer to nothing of this
        with_tensors(torch, value, note)
    return nodes


def _is_any_compiled(nodes: set[Node], given: set[Node]) -> bool:
    """Whether a compiled graph lies between what a call gave and what it was given."""
    waiting, seen = list(nodes), {*nodes, *given}
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if type(node).__name__.startswith(_OF_A_GRAPH):
            return True
        further = {before for before, _ in node.next_functions if before is not None} - seen
        seen |= further
        waiting += further
    return False


def repeated_blocks(torch: ModuleType, model: Module) -> list[Module]:
    """The modules of one class, with modules in them and parameters to train, that a list of the model's holds several
    of; the outermost such ones, in the order in which the model holds them.
    """
    lists = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)
    blocks: list[Module] = []
    within: set[int] = set()
    for holder in model.modules():
        if id(holder) in within or not isinstance(holder, lists):
            continue
        of_class: dict[type, list[Module]] = defaultdict(list)
        for child in holder.children():
            if not isinstance(child, lists) and _is_block(child):
                of_class[type(child)].append(child)
        for alike in of_class.values():
            if len(alike) > 1:
                blocks += alike
                within |= {id(part) for block in alike for part in block.modules()}
    return blocks


def _is_block(module: Any) -> bool:
    return next(module.children(), None) is not None and any(each.requires_grad for each in module.parameters())


def compiled_model(torch: ModuleType, model: Module, mode: object) -> tuple[Callable[..., Any], CompiledCalls]:
    """What to call in the place of the model, and what is seen of these calls."""
    how: dict[str, object] = {"dynamic": True} if mode == DYNAMIC else {"mode": None if mode == "default" else mode}
    calls = CompiledCalls(1)
    return partial(_looked_at, calls, torch, 0, _compiled(_framed(torch, **how), model)), calls


def with_compiled_blocks(torch: ModuleType, model: Module) -> tuple[Callable[..., Any], CompiledCalls]:
    """What to call in the place of the model, whose blocks are compiled from now on in training; what is seen of them.

    They are put where ``Module.compile`` puts what it compiles: PyTorch leaves that out of copies and checkpoints.
    """
    blocks: list[Any] = list(repeated_blocks(torch, model))
    run, calls = _framed(torch, mode=None), CompiledCalls(len(blocks))
    for place, block in enumerate(blocks):
        compiled = partial(_looked_at, calls, torch, place, _compiled(run, block))
        block._compiled_call_impl = _in_training(torch, compiled, block)
    return _compiled(_call_of, model), calls


def _looked_at(
    calls: CompiledCalls, torch: ModuleType, place: int, run: Callable[..., Any], *args: object, **kwargs: object
) -> Any:
    return calls.call(torch, place, run, args, kwargs)


def _in_training(torch: ModuleType, compiled: Callable[..., Any], block: Module) -> Callable[..., Any]:
    """What is called without gradients, as to validate, runs as written; so does what is part of another graph.

    A block that trains without gradients is checkpointed: it is called again in the backward, and has to draw there
    what it drew before. From then on it runs as written.
    """
    plain = _compiled(_call_of, block)
    checkpointed = False

    def run(*args: object, **kwargs: object) -> Any:
        nonlocal checkpointed
        checkpointed = checkpointed or (block.training and not torch.is_grad_enabled())
        compiles = torch.is_grad_enabled() and not checkpointed and not torch.compiler.is_compiling()
        return (compiled if compiles else plain)(*args, **kwargs)

    return run


def _framed(torch: ModuleType, **how: object) -> Callable[..., Any]:
    """``module.compile()`` silently does nothing for classes of torch.nn itself; a frame of its own is compiled."""
    from torch._dynamo.external_utils import wrap_inline

    # What is compiled is kept with the code that it was compiled of, and few versions of it: this has code of its own.
    frame: Any = wrap_inline(_call_of)
    frame.__code__ = frame.__code__.replace(co_name=f"{frame.__code__.co_name}_{next(_numbers)}")
    run: Callable[..., Any] = torch.compile(frame, **how)
    return run


def _compiled(run: Callable[..., Any], module: Module) -> Callable[..., Any]:
    refer = weakref.ref(module)  # what is kept for a module must not hold it
    return lambda *args, **kwargs: run(refer(), *args, **kwargs)


def _call_of(module: Module, *args: object, **kwargs: object) -> object:
    return module._call_impl(*args, **kwargs)


def _takes_gradient(torch: ModuleType, value: object) -> bool:
    with suppress(Exception):  # as above
        return any(tensor.requires_grad for tensor in tensors(torch, value))
    return False


@dataclass
class Root:
    """An outermost module: whether it has parameters to train, how often it was called, what it was compiled to."""

    trains: bool
    has_conv2d: bool
    calls: int = 0
    compiled: Callable[..., Any] | None = None
    compiled_calls: CompiledCalls = field(default_factory=lambda: CompiledCalls(0))
    seen_in_window: bool = False
    shapes: Shapes = field(default_factory=Shapes)
    looks: int = 1
    """How often its parameters were gone through for one to train."""
    may_thaw: bool = True

    def frozen(
        self, torch: ModuleType, run: Callable[..., Result], module: Module, args: tuple[object, ...], kwargs: Keywords
    ) -> Result:
        """Its call while it has nothing to train. A gradient that goes on from what it gives, and comes of nothing that
        it was given, shows that it was thawed: its parameters are gone through again with the next call.
        """
        result = run(module, *args, **kwargs)
        if self.may_thaw and _takes_gradient(torch, result) and not _takes_gradient(torch, (args, kwargs)):
            self.may_thaw = any(parameter.requires_grad for parameter in module.parameters())
            self.looks = 0 if self.may_thaw else self.looks
        return result

    @property
    def is_settled(self) -> bool:
        """Whether what ``trains`` says stays. Its first call may have built it, or met it frozen, as a discriminator is
        while its generator trains. A frozen one isn't gone through for ever: a large one would take longer than a step.
        """
        return self.trains or self.looks >= MOST_LOOKS
