"""A trial of a loop of JAX's in the tests' own process, and what such loops are made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy

from support.in_process import InProcess
from support.jax_here import jax
from tuner.child.adapter import instrument
from tuner.child.jax.adapter import JaxAdapter
from tuner.child.patches import unpatch_all

jnp = jax.numpy
DATA = numpy.random.default_rng(0)
X = DATA.normal(size=(240, 4)).astype("float32")
Y = X.sum(1)


class Trial(InProcess):
    """A trial of a loop; ``updates`` and ``rows`` are what the loop itself counts."""

    def __init__(
        self, config: dict[str, Any] | None = None, knowledge: dict[str, Any] | None = None, **request: Any
    ) -> None:  # fmt: skip
        super().__init__(config or {}, knowledge or {}, **request)
        self.adapter = JaxAdapter(self.session)
        self.updates = self.rows = 0

    def trained(self, updates: int, *rows: int) -> None:
        """The loop's own count."""
        self.updates += updates
        self.rows += sum(rows)

    def is_counted(self, *, late: int = 0, late_rows: int = 0) -> bool:
        """Whether steps and samples are those. ``late``: of the last step, which no gradient follows."""
        counted = self.steps, self.samples
        expected = self.updates - late, self.rows - late_rows
        assert counted == expected, (counted, expected, self.session.facts.remarks)
        return True

    def end_of_script(self) -> list[str]:
        """What is said where the script ends here."""
        self.adapter.script_ended()
        return [failure["detail"] for failure in self.log.of("failure")]


@contextmanager
def watched(*feeding: tuple[Any, Any], **given: Any) -> Iterator[Trial]:
    """JAX under the watch, in a trial that is ``given`` so. ``feeding``: adapters and modules of what feeds it."""
    unpatch_all()
    made = Trial(**given)
    for adapter, module in feeding:
        instrument(made.session, adapter(made.session), module)
    instrument(made.session, made.adapter, jax)
    try:
        yield made
    finally:
        unpatch_all()


def weights() -> Any:
    return {"w": jnp.zeros(4), "b": jnp.zeros(())}


def loss_of(params: Any, x: Any, y: Any) -> Any:
    return ((x @ params["w"] + params["b"] - y) ** 2).mean()


def descend(params: Any, gradients: Any) -> Any:
    return jax.tree_util.tree_map(lambda p, g: p - 0.01 * g, params, gradients)


def batches(size: int, count: int) -> Iterator[tuple[Any, Any]]:
    for number in range(count):
        start = number * size % len(X)
        yield X[start : start + size], Y[start : start + size]
