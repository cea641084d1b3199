"""What configs of a rotation compile of a script's models: made before their first turns, in force in theirs alone.

Before its first turn a config's code is compiled by computing kept calls of the models forwards and backwards, in the
config's other settings. What that changes is put back: buffers, random numbers. Weights, their gradients and what
optimizers remember aren't touched. In other configs' turns the script's own modules are called.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..records import ConfigCompiled, Value
from ..session import Session
from . import compiler, compiling
from .compiling import (
    CUDA_GRAPHS,
    KNOB,
    NO_GRADIENT,
    NOT_COMPILED,
    REGIONAL,
    CompiledCalls,
    Root,
    not_running,
    repeated_blocks,
)
from .deadline import is_free, within
from .draws import Draws
from .kept_calls import CHANGES_WEIGHTS, KeptCall, marks_of
from .modules import ModuleWatch
from .outputs import with_tensors
from .parts import KEEPS
from .state import same_state, state_of
from .types import Module, Result

LONGEST_S, LONGEST_SHARE = 120.0, 1 / 3
"""A config may take so long to be compiled, and that much of the time that the trial has left."""
UNSWITCHED = {
    CUDA_GRAPHS: "CUDA graphs hold on to the memory of weights, which other configs lay otherwise",
    "max-autotune-no-cudagraphs": "kernels are tried for it for minutes",
}
ALARM_IS_TAKEN = "nothing would end a compilation that takes too long: the script uses the process's alarm itself"
_IMPL = "_compiled_call_impl"
"""Where ``Module.compile`` puts what it compiled of a module."""
Config = Mapping[str, Value]


class CompilationError(Exception):
    """A config can't be compiled. The text is for people, in one line."""


@dataclass
class _Model:
    """What one config compiled of a model: what is called in its place, what is seen of that; blocks and theirs."""

    run: Callable[..., Any]
    calls: CompiledCalls
    blocks: list[tuple[Any, Any]]


@dataclass(frozen=True)
class _Limit:
    """How long the compilation of one config may take: ``seconds``, until ``ends``."""

    seconds: float
    ends: float

    def around(self, run: Callable[[], Result]) -> Result:
        """What ``run()`` gives; it is ended where that takes too long, and nothing else is."""
        told = f"its compilation takes longer than {self.seconds:.0f} s"
        return within(self.ends - time.perf_counter(), told, run)


@dataclass
class _Made:
    """What one config compiled, in that ``mode``; ``given_up`` as ``CompilerCounts`` had it as its turn began."""

    mode: Value
    models: weakref.WeakKeyDictionary[Module, _Model] = field(default_factory=weakref.WeakKeyDictionary)
    given_up: int = 0


class CompiledTurns:
    """Switches what is compiled. ``off`` comes before all other settings are put back, ``on`` after they were made."""

    def __init__(self, session: Session, torch: ModuleType, modules: ModuleWatch) -> None:
        self._session = session
        self._torch: Any = torch
        self._modules = modules
        self._made: dict[tuple[tuple[str, Value], ...], _Made] = {}
        self._now: _Made | None = None
        self._graphs = self._at_turn = 0

    @property
    def graphs(self) -> int:
        """Those that were compiled for configs: no other config's turn is any less steady for them."""
        return self._graphs + (compiler.counts().graphs - self._at_turn if self._now is not None else 0)

    def refusal(self, config: Config) -> str:
        """Why the config can't be compiled beside others, continuing "can't be switched to: "; "" where it can."""
        mode, kept = config.get(KNOB), self._modules.kept_calls
        if mode is None:
            return ""
        if mode in NOT_COMPILED:
            return "nothing is compiled as the script is written"
        if mode in UNSWITCHED:
            return UNSWITCHED[str(mode)]
        if kept is None:
            return "no call of its model was kept, on which to compile it"
        if not is_free():
            return ALARM_IS_TAKEN
        return next((why for model, _ in self._roots() if (why := kept.obstacle(model))), "")

    # turns

    def off(self) -> None:
        """The turn is over: the script's own modules are called again."""
        self._graphs, self._now = self.graphs, None
        modules = self._modules
        if modules.compile_mode is None:
            return
        modules.compile_mode = None
        for model, root in list(modules.roots.items()):
            root.compiled, root.compiled_calls = None, CompiledCalls(0)
            parts: list[Any] = list(model.modules())
            for part in parts:
                if getattr(vars(part).get(_IMPL), "__module__", "") == compiling.__name__:
                    delattr(part, _IMPL)

    def on(self, config: Config) -> None:
        """The config has its turn, after ``off``. Raises ``CompilationError``, also where that takes too long."""
        if KNOB not in config:
            return
        key = _key(config)
        if key not in self._made:
            self._made[key] = self._compiled(config)
        made = self._made[key]
        self._modules.compile_mode = made.mode
        for model, of in made.models.items():
            self._put(model, of)
            of.calls.ran.clear()
            of.calls.looked = False
        counts = compiler.counts()
        self._now, self._at_turn, made.given_up = made, counts.graphs, counts.given_up

    def _put(self, model: Module, of: _Model) -> None:
        root = self._modules.roots[model]
        root.compiled, root.compiled_calls = of.run, of.calls
        for block, run in of.blocks:
            setattr(block, _IMPL, run)

    def doubt(self, config: Config) -> str:
        """What of the config isn't as it has to be, or ""; of one that compiles nothing, too."""
        made = self._now
        if made is None:
            return "compiled code ran in its turn" if self._modules.ran_compiled else ""
        if compiler.counts().given_up > made.given_up:
            return "the compiler gave some of its code up, after too many compilations"
        calls = [of.calls for of in made.models.values()]
        return "" if any(each.running for each in calls) else not_running(calls)

    def disturbed(self) -> str:
        """What the turn held besides training, or ""."""
        count = compiler.counts().graphs - self._at_turn if self._now is not None else 0
        return f"{count} graphs were compiled anew" if count else ""

    def leave(self, config: Config) -> None:
        """The config has no more turns."""
        self._made.pop(_key(config), None)

    def end(self) -> None:
        """There are no more turns."""
        self._made.clear()
        self._modules.kept_calls = None

    # compiling

    def _compiled(self, config: Config) -> _Made:
        """What the config compiles, by now compiled for every shape that was seen."""
        if not is_free():
            raise CompilationError(ALARM_IS_TAKEN)  # since its refusal was asked for
        began, before, made = time.perf_counter(), compiler.counts().graphs, _Made(config[KNOB])
        limit_s = max(1.0, min(LONGEST_S, LONGEST_SHARE * self._session.left_s))
        limit = _Limit(limit_s, began + limit_s)
        self._modules.compile_mode = made.mode
        try:
            for model, root in self._roots():
                made.models[model] = self._made_of(model, root)
            for _ in range(2):  # what is compiled in the first call runs in the second
                self._rehearse(made, limit)
        except Exception as error:  # of the compiler, of what it compiled, or of the script's own model
            raise CompilationError(_in_a_line(error)) from error
        finally:
            count = compiler.counts().graphs - before
            self._graphs += count
            self.off()
        seconds = time.perf_counter() - began
        self._session.recorder.emit(ConfigCompiled(config, seconds, count))
        return made

    def _made_of(self, model: Module, root: Root) -> _Model:
        with self._modules.calls.entered(model):  # it isn't the script that compiles
            run = self._modules.compile(model, root)
        in_blocks = self._modules.compile_mode == REGIONAL
        blocks: list[Any] = repeated_blocks(self._torch, model) if in_blocks else []
        return _Model(run, root.compiled_calls, [(block, vars(block)[_IMPL]) for block in blocks])

    def _rehearse(self, made: _Made, limit: _Limit) -> None:
        kept = self._modules.kept_calls
        for model, of in list(made.models.items()):
            self._put(model, of)
            # What is ended is what the compiler does: not what enters a precision, and puts it back.
            self._modules.roots[model].compiled = lambda *args, _run=of.run, **kwargs: limit.around(
                lambda: _run(*args, **kwargs)
            )
            for call in kept.calls_of(model) if kept is not None else ():
                with self._untouched(model):
                    self._compute(model, call, limit)

    def _compute(self, model: Any, call: KeptCall, limit: _Limit) -> None:
        """Forwards and backwards; gradients aren't added to the weights' own."""
        torch, root = self._torch, self._modules.roots[model]
        if model.training is not call.training:
            raise RuntimeError("its model is in another mode than it trains in")
        enabled, dtype, caches = call.autocast
        autocast = torch.autocast(self._modules.device_type, dtype=dtype, cache_enabled=caches)
        with torch.enable_grad():
            with autocast if enabled else nullcontext():
                result = self._modules.rehearse(model, root, call.args, call.kwargs)
            outputs: list[Any] = []

            def note(tensor: Any) -> Any:
                outputs.extend([tensor] * tensor.requires_grad)
                return tensor

            with_tensors(torch, result, note)
            if not outputs:
                raise RuntimeError(NO_GRADIENT)
            weights = [weight for weight in model.parameters() if weight.requires_grad]
            ones = [torch.ones_like(output) for output in outputs]
            limit.around(lambda: torch.autograd.grad(outputs, weights, ones, allow_unused=True))

    @contextmanager
    def _untouched(self, model: Any) -> Iterator[None]:
        """Puts back what a call changes. Raises where it changed what can't be put back."""
        torch, drawn = self._torch, Draws(self._torch)
        holders = [each._buffers for each in model.modules()]
        buffers = [
            (of, name, buffer, buffer.clone()) for of in holders for name, buffer in of.items() if buffer is not None
        ]
        weights = list(model.parameters())
        before, marks = state_of(model, buffers=False), marks_of(torch, weights)
        torch.clear_autocast_cache()
        try:
            yield
        finally:
            torch.clear_autocast_cache()
            drawn.put_back()
            with torch.no_grad():
                for of, name, buffer, copy in buffers:
                    of[name] = buffer
                    if not torch.equal(buffer, copy):  # by its values: what is changed as ``data`` has no version
                        buffer.copy_(copy)
        if not same_state(before, state_of(model, buffers=False)):
            raise RuntimeError(KEEPS)
        if marks != marks_of(torch, weights):
            raise RuntimeError(CHANGES_WEIGHTS)

    def _roots(self) -> list[tuple[Module, Root]]:
        return [(model, root) for model, root in self._modules.roots.items() if root.trains]


def _in_a_line(error: Exception) -> str:
    """What it says: compilers wrap errors in others, and add advice of their own below."""
    told = str(error).partition("Set TORCHDYNAMO_VERBOSE")[0]
    return " ".join(f"{type(error).__name__}: {told}".split())[:200]


def _key(config: Config) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(config.items()))
