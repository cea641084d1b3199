"""TensorFlow's own rewriting of graphs to bf16 on a CPU: whether it is on, and what it made of the training step."""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from types import ModuleType
from typing import Any

from ..session import Session
from . import elsewhere
from .graphs import PRODUCTS, nodes_of, products_among
from .types import NodeDef, Result

KNOB = "grappler_mixed_precision"
OPTION = "auto_mixed_precision_onednn_bfloat16"
"""As TensorFlow calls it; its graph optimizer is Grappler."""
NOT_REWRITTEN = "TensorFlow computes no product in bf16 where it may, on this processor"
NOTHING_TO_REWRITE = "no product of float32 was seen in a traced training step"
UNCOLLECTED = "the graph of the training step can't be seen as it ran"
BF16 = "bfloat16"
BACKEND = "tensorflow"


MOST_STEPS = 64


class MixedPrecisionWatch:
    """Sets the option before TensorFlow's runtime starts, and reads the graphs as they ran.

    Of these the ones that train count: they hold every product, by its name, that stood in a function when a gradient
    of variables had been traced there. What validates is another graph, without the products of the gradient.
    """

    def __init__(self, session: Session, tf: ModuleType) -> None:
        self._session = session
        self._tf: Any = tf
        self._collects = False
        self._steps: set[frozenset[str]] = set()
        """The names of the products of each function that trains, as traced."""
        self._counted: Counter[str] | None = None

    def configure(self) -> None:
        """As the config says."""
        wanted = self._session.knobs.wanted(KNOB)
        if wanted is not None:
            self.set(bool(wanted))

    def set(self, may: bool) -> None:
        """Whether TensorFlow may rewrite the graphs that it makes from here on."""
        self._tf.config.optimizer.set_experimental_options({OPTION: may})

    @property
    def is_on(self) -> bool:
        """Whether TensorFlow may rewrite graphs, as it is set now."""
        return bool(self._tf.config.optimizer.get_experimental_options().get(OPTION, False))

    def gradient_taken(self) -> None:
        """A gradient of variables was taken, or traced: TensorFlow is to keep the graphs that it makes from now on.

        That of a function which is being traced is among them: it is made when that is called for the first time.
        """
        if self._counted is not None or not self._session.here or not self._session.knobs.wants(KNOB):
            return
        if not self._collects and not _script_traces():
            self._collects = True
            _context().enable_graph_collection()
        if self._tf.inside_function() and len(self._steps) < MOST_STEPS:
            traced = self._tf.compat.v1.get_default_graph()
            names = frozenset(node.name for node, _ in nodes_of(traced) if node.op in PRODUCTS)
            self._steps |= {names} if names else set()

    def runs_of(self, run: Callable[[], Result]) -> tuple[Result, Counter[str]]:
        """What it gives, and the products of the graphs that TensorFlow makes for it. Raises what it raises."""
        _context().enable_graph_collection()
        try:
            return run(), self._products(_context().export_run_metadata().function_graphs)
        finally:
            _context().disable_graph_collection()

    # what is told

    def written(self, backend: str, step: Counter[str] | dict[str, int]) -> None:
        """The script's own setting. ``step``: number format → products in the training step."""
        facts = self._session.facts
        if self._session.device.kind != "cpu":
            return
        if backend != BACKEND:
            facts.left_out[KNOB] = elsewhere(backend)
        elif not step.get("float32"):
            facts.left_out[KNOB] = NOTHING_TO_REWRITE
        elif not self._rewrites():
            facts.left_out[KNOB] = NOT_REWRITTEN
        else:
            facts.as_written[KNOB] = self.is_on

    def report(self) -> None:
        """Evidence, where the config asks for it: whether the graphs that train ran with products in bf16."""
        knobs = self._session.knobs
        if KNOB not in knobs.requested:
            return
        if not knobs.requested[KNOB]:
            knobs.compare(KNOB, self.is_on)
            return
        counts = self.ran()
        if not counts:
            knobs.inapplicable(KNOB, self.why_unseen, sites=0)
            return
        rewritten = counts.get(BF16, 0)
        knobs.compare(KNOB, rewritten > 0, sites=sum(counts.values()), changed=rewritten, why=in_words(counts))

    @property
    def is_traced(self) -> bool:
        """Whether a training step with products in it was traced."""
        return bool(self._steps)

    @property
    def why_unseen(self) -> str:
        """Why nothing shows what the training step computes in, where ``ran`` gives nothing."""
        return UNCOLLECTED if self.is_traced else NOTHING_TO_REWRITE

    def ran(self) -> Counter[str]:
        """Number format → products, of the graphs that train as they ran; TensorFlow keeps no more from here on."""
        if self._counted is None:
            self._counted = Counter()
            if self._collects and not _script_traces():
                self._counted = self._products(_taken_back(), self._steps)
        return self._counted

    def _products(self, graphs: Iterable[Any], steps: Collection[frozenset[str]] | None = None) -> Counter[str]:
        """Products in each format, in graphs as they were when they ran; ``steps``: only of those that hold one."""
        counted: Counter[str] = Counter()
        for graph in graphs:
            names = {node.name for node in _all_nodes(graph.pre_optimization_graph)} if steps else set()
            if steps is None or any(step <= names for step in steps):
                counted.update(products_among(self._tf, _all_nodes(graph.post_optimization_graph)))
        return counted

    def _rewrites(self) -> bool:
        """Whether TensorFlow makes bf16 of two products of its own. Everything is as it was afterwards."""
        tf, before = self._tf, self.is_on
        # Where oneDNN is kept from instructions that TensorFlow counts on, a product in bf16 ends the process.
        if tf.inside_function() or any(os.environ.get(name) for name in _LIMITS_OF_ONEDNN):
            return False
        self.set(True)
        _context().enable_graph_collection()
        try:

            def multiplied(x: Any) -> Any:
                return tf.linalg.matmul(tf.nn.relu(tf.linalg.matmul(x, x)), x)

            with tf.device("/CPU:0"):
                tf.function(multiplied, autograph=False)(tf.ones([64, 64]))
            return BF16 in self._products(_taken_back())
        finally:
            _context().disable_graph_collection()
            self.set(before)


_LIMITS_OF_ONEDNN = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def in_words(counts: Counter[str]) -> str:
    """What the graphs of a training step compute in, for people."""
    return "the graphs compute " + ", ".join(f"{count} in {dtype}" for dtype, count in sorted(counts.items()))


def _all_nodes(definition: Any) -> Iterator[NodeDef]:
    """Those of a graph's definition, and of the functions that it calls."""
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def _taken_back() -> list[Any]:
    """The graphs that TensorFlow kept, which it forgets; it keeps no more."""
    try:
        return list(_context().export_run_metadata().function_graphs)
    finally:
        _context().disable_graph_collection()


def _script_traces() -> bool:
    """Whether the script has TensorFlow keep graphs for itself (``tf.summary.trace_on``): none may be taken."""
    summaries = sys.modules.get("tensorflow.python.ops.summary_ops_v2")
    return getattr(summaries, "_current_trace_context", None) is not None


def _context() -> Any:
    """TensorFlow's own, which it tells of in no public place."""
    return importlib.import_module("tensorflow.python.eager.context").context()
