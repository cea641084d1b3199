"""TensorFlow's own rewriting of graphs to bf16 on a CPU: whether it is on, and what it made of the training step."""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from ..session import Session
from .graphs import PRODUCTS

KNOB = "grappler_mixed_precision"
OPTION = "auto_mixed_precision_onednn_bfloat16"
"""As TensorFlow calls it; its graph optimizer is Grappler."""
NOT_REWRITTEN = "TensorFlow computes no product in bf16 where it may, on this processor"
NOTHING_TO_REWRITE = "no product of float32 was seen in a traced training step"
UNCOLLECTED = "the graphs that ran can't be seen"
BF16 = "bfloat16"
BACKEND = "tensorflow"


class MixedPrecisionWatch:
    """Sets the option before TensorFlow's runtime starts, and reads the graphs as they ran."""

    def __init__(self, session: Session, tf: ModuleType) -> None:
        self._session = session
        self._tf: Any = tf
        self._collects = False

    def configure(self) -> None:
        """As the config says."""
        wanted = self._session.knobs.wanted(KNOB)
        if wanted is not None:
            self._set(bool(wanted))

    def _set(self, may: bool) -> None:
        self._tf.config.optimizer.set_experimental_options({OPTION: may})

    @property
    def is_on(self) -> bool:
        """Whether TensorFlow may rewrite graphs, as it is set now."""
        return bool(self._tf.config.optimizer.get_experimental_options().get(OPTION, False))

    def gradient_begins(self) -> None:
        """Has TensorFlow keep the graphs that it makes from now on: those of the step that takes this gradient, too."""
        if not self._collects and self._session.measuring and self._session.knobs.wants(KNOB):
            self._collects = True
            _context().enable_graph_collection()

    # what is told

    def written(self, backend: str, step: Counter[str] | dict[str, int]) -> None:
        """The script's own setting. ``step``: number format → products in the training step."""
        facts = self._session.facts
        if self._session.device.kind != "cpu":
            return
        if backend != BACKEND:
            facts.left_out[KNOB] = f"Keras computes with {backend} here"
        elif not step.get("float32"):
            facts.left_out[KNOB] = NOTHING_TO_REWRITE
        elif not self._rewrites():
            facts.left_out[KNOB] = NOT_REWRITTEN
        else:
            facts.as_written[KNOB] = self.is_on

    def report(self) -> None:
        """Evidence, where the config asks for it: whether the graphs that ran hold products in bf16."""
        knobs = self._session.knobs
        if KNOB not in knobs.requested:
            return
        if not knobs.requested[KNOB]:
            knobs.compare(KNOB, self.is_on)
            return
        counts = self._collected()
        if not counts:
            knobs.inapplicable(KNOB, UNCOLLECTED, sites=0)
            return
        seen = ", ".join(f"{count} in {dtype}" for dtype, count in sorted(counts.items()))
        rewritten = counts.get(BF16, 0)
        knobs.compare(
            KNOB, rewritten > 0, sites=sum(counts.values()), changed=rewritten, why=f"the graphs compute {seen}"
        )

    def _collected(self) -> Counter[str]:
        """The products of the graphs that TensorFlow kept; it keeps no more from here on."""
        if not self._collects:
            return Counter()
        self._collects = False
        try:
            return self._products(_context().export_run_metadata().function_graphs)
        finally:
            _context().disable_graph_collection()

    def _products(self, graphs: Iterable[Any]) -> Counter[str]:
        """How many products there are in each format, in graphs as they were when they ran."""
        counted: Counter[str] = Counter()
        for graph in graphs:
            definition = graph.post_optimization_graph
            nodes = [*definition.node, *(node for each in definition.library.function for node in each.node_def)]
            counted.update(self._tf.as_dtype(node.attr["T"].type).name for node in nodes if node.op in PRODUCTS)
        return counted

    def _rewrites(self) -> bool:
        """Whether TensorFlow makes bf16 of two products of its own. Everything is as it was afterwards."""
        tf, before = self._tf, self.is_on
        # Where oneDNN is kept from instructions that TensorFlow counts on, a product in bf16 ends the process.
        if tf.inside_function() or any(os.environ.get(name) for name in _LIMITS_OF_ONEDNN):
            return False
        self._set(True)
        _context().enable_graph_collection()
        try:

            def multiplied(x: Any) -> Any:
                return tf.linalg.matmul(tf.nn.relu(tf.linalg.matmul(x, x)), x)

            with tf.device("/CPU:0"):
                tf.function(multiplied, autograph=False)(tf.ones([64, 64]))
            return BF16 in self._products(_context().export_run_metadata().function_graphs)
        finally:
            _context().disable_graph_collection()
            self._set(before)


_LIMITS_OF_ONEDNN = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def _context() -> Any:
    """TensorFlow's own, which it tells of in no public place."""
    return importlib.import_module("tensorflow.python.eager.context").context()
