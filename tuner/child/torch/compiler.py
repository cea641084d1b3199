"""What PyTorch's compiler counts of itself (graphs of dynamo, kernels from inductor's cache on disk). And what it is
to leave alone: our own code.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from ..patches import patch
from ..session import Session
from ..watch import Pause
from .types import Result


@dataclass(frozen=True)
class CompilerCounts:
    """``graphs`` that were compiled, the ``seconds`` that took, ``breaks`` between graphs.

    ``without_cuda_graph``: graphs that can't be replayed as CUDA graphs. ``given_up``: code that runs as it was written
    after it had been compiled as often as the compiler is willing to.
    """

    graphs: int = 0
    seconds: float = 0.0
    breaks: int = 0
    without_cuda_graph: int = 0
    given_up: int = 0


def counts() -> CompilerCounts:
    """Since the process began; zeros as long as nothing has imported the compiler."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return CompilerCounts()
    stats = dynamo.counters
    times = getattr(dynamo, "compilation_time_metrics", {})
    seconds = sum(times.get("_compile.compile_inner", ())) if times else 0.0
    return CompilerCounts(
        int(stats["stats"]["unique_graphs"]), float(seconds), sum(stats["graph_break"].values()),
        int(stats["inductor"].get("cudagraph_skips", 0)), _given_up(stats),
    )  # fmt: skip


def _given_up(stats: Mapping[str, Mapping[str, int]]) -> int:
    """How often the limit of recompilations was hit: it is counted under the words of its message only."""
    reasons = [*stats.get("graph_break", {}).items(), *stats.get("unimplemented", {}).items()]
    return sum(count for reason, count in reasons if "recompile limit exceeded" in str(reason))


def cache_counts() -> tuple[int, int]:
    """Graphs that came out of inductor's cache on disk, and graphs that had to be compiled."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    inductor = dynamo.counters["inductor"] if dynamo is not None else {}
    misses = inductor.get("fxgraph_cache_miss", 0) + inductor.get("fxgraph_cache_bypass", 0)
    return int(inductor.get("fxgraph_cache_hit", 0)), int(misses)


def why_not_compiled() -> str:
    """For people: that nothing was, and the first reason that the compiler gave."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    breaks = list(dynamo.counters["graph_break"]) if dynamo is not None else []
    lines = str(breaks[0]).strip().splitlines() if breaks else []
    return f"nothing was compiled: {lines[0]}" if lines else "nothing was compiled"


def watch_compilation(session: Session, callbacks: ModuleType) -> None:
    """For ``torch._dynamo.callback``: tells when compiling begins and ends, of whatever the script compiles as well.

    The handler's methods are patched, not its lists: ``torch._dynamo.reset`` empties those.
    """
    if not session.measuring:
        return

    def telling(begins: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
        def make(original: Callable[..., None]) -> Callable[..., None]:
            def run(*args: object, **kwargs: object) -> None:
                session.pause(Pause.COMPILATION, begins=begins)
                original(*args, **kwargs)

            return run

        return make

    patch(callbacks.CompilationCallbackHandler, "run_start_callbacks", telling(begins=True))
    patch(callbacks.CompilationCallbackHandler, "run_end_callbacks", telling(begins=False))


def watch_graphs(output_graph: ModuleType, seen: Callable[[Iterable[Any]], None]) -> None:
    """For ``torch._dynamo.output_graph``: ``seen`` is told the nodes of each graph before its backend compiles it.

    What ``seen`` makes of a graph fails no compilation, and is none of the compiler's guards.
    """

    def telling(original: Callable[..., Result]) -> Callable[..., Result]:
        def call_user_compiler(graph_maker: object, graph: Any, *args: object, **kwargs: object) -> Result:
            with suppress(Exception):
                seen(graph.graph.nodes)
            return original(graph_maker, graph, *args, **kwargs)

        return call_user_compiler

    if hasattr(output_graph.OutputGraph, "call_user_compiler"):
        patch(output_graph.OutputGraph, "call_user_compiler", telling)


class _Here(threading.local):
    """Of the thread that asks: what the compiler does with frames where our own code isn't run."""

    callback: object = None


class Uncompiled:
    """Has the compiler leave our code alone where a script compiles what calls it: an optimizer's step, a whole step.

    It would trace our code frame by frame, anew with each count that goes up, and can't make anything of some of it.
    What it would do otherwise (PyTorch 2.6 to 2.13) is done again around PyTorch's own functions.
    """

    def __init__(self, torch: ModuleType) -> None:
        self._frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
        self._here = _Here()

    def ours(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """A function of ours that the script calls in the place of one of PyTorch's."""
        exchange = getattr(self._frames, "set_eval_frame", None)
        if exchange is None:
            return function
        here = self._here

        def run(*args: object, **kwargs: object) -> Result:
            before, around = exchange(None), here.callback
            here.callback = before
            try:
                return function(*args, **kwargs)
            finally:
                here.callback = around
                exchange(before)

        with suppress(Exception):
            self._skip(run.__code__)
            vars(run)["_torchdynamo_disable"] = True
        return run

    def theirs(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """PyTorch's own function, which ours calls."""
        exchange = getattr(self._frames, "set_eval_frame", None)
        if exchange is None:
            return function
        here = self._here

        def run(*args: object, **kwargs: object) -> Result:
            before = exchange(here.callback)
            try:
                return function(*args, **kwargs)
            finally:
                exchange(before)

        return run

    def _skip(self, code: CodeType) -> None:
        """Of a frame that is entered the compiler asks before any of it has run."""
        frames = self._frames
        if hasattr(frames, "skip_code"):
            frames.skip_code(code)
        else:
            action = frames._FrameAction
            frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
