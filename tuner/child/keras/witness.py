"""What a training step computes in where Keras computes with JAX or PyTorch, and whether it ran compiled.

A policy or a flag says what was asked for. JAX traces the step into an expression that can be read, and PyTorch shows
each operation of one step while it runs.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

from ..jax.graphs import operations_of
from ..patches import instead
from .types import Model

COUNTED_AT = 2
"""The call of the training function whose operations PyTorch is asked for: the first ones build what is missing."""
_ON_JAX = frozenset({"dot_general", "conv_general_dilated"})
_ON_TORCH = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "linear", "matmul"})
Returned = TypeVar("Returned")


class StepWitness:
    """Of the newest model. ``compiled``: whether the step ran compiled; None where nothing shows it."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._step: Callable[..., object] | None = None
        self._example: tuple[Any, Any] | None = None
        self._was_traced = False
        self._counted: Counter[str] = Counter()

    @contextmanager
    def watching(self, model: Model, *, anew: bool) -> Iterator[None]:
        """While the training function is made, if it is made ``anew``: what JAX compiles calls the step once, and shows
        with what.
        """
        if self.backend != "jax" or not anew:
            yield
            return
        step = model.train_step
        self._step, self._example, self._was_traced = step, None, False

        def train_step(state: object, data: object) -> object:
            if self._example is None and self._step is step:
                self._saw(state, data)
            return step(state, data)

        with instead(model, "train_step", train_step):
            yield

    def _saw(self, state: object, data: object) -> None:
        """Keeps the shapes and formats of the step's arguments, and no array of them."""
        jax = sys.modules["jax"]
        leaves = jax.tree_util.tree_leaves((state, data))
        self._was_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)

        def shape_of(leaf: object) -> object:
            return jax.ShapeDtypeStruct(jax.numpy.shape(leaf), jax.numpy.result_type(leaf))

        self._example = jax.tree_util.tree_map(shape_of, (state, data))

    def run(self, function: Callable[..., Returned], args: tuple[object, ...]) -> Returned:
        """The result of the training function, whose products are counted. On PyTorch, where nothing is compiled."""
        torch = sys.modules["torch"]
        self._counted.clear()
        with _products_on_torch(torch, self._counted):
            return function(*args)

    def products(self) -> Counter[str]:
        """Number format → products of matrices in the step; empty where they can't be seen."""
        if self.backend == "jax" and self._step is not None and self._example is not None:
            return _products_on_jax(_traced(self._step, self._example).jaxpr)
        return self._counted

    @property
    def compiled(self) -> bool | None:
        """Whether the step ran compiled; None where nothing shows it."""
        if self.backend == "jax":
            return self._was_traced if self._example is not None else None
        dynamo = sys.modules.get("torch._dynamo.utils")
        return dynamo is not None and bool(dynamo.counters["stats"]["unique_graphs"])

    def traces_differ(self) -> bool:
        """Whether JAX's step, traced twice, isn't the same: what Python draws or counts is frozen when it's traced."""
        if self._step is None or self._example is None:
            return False
        one, other = _traced(self._step, self._example), _traced(self._step, self._example)
        numpy = sys.modules["numpy"]
        same = len(one.consts) == len(other.consts) and all(
            numpy.array_equal(a, b, equal_nan=True) for a, b in zip(one.consts, other.consts, strict=True)
        )
        return not same or str(one.jaxpr) != str(other.jaxpr)


def _traced(step: Callable[..., object], example: tuple[Any, Any]) -> Any:
    """The step as an expression, traced now."""
    def anew(state: object, data: object) -> object:
        return step(state, data)  # a function of its own: JAX keeps what it has traced, by the function

    with _wherever_it_lies(getattr(step, "__self__", None)):
        return sys.modules["jax"].make_jaxpr(anew)(*example)


@contextmanager
def _wherever_it_lies(model: Any) -> Iterator[None]:
    """Keras 3.10 forgets after a ``fit`` on which devices its arrays lay, and asks whenever a step is traced."""
    if not hasattr(model, "_enforce_jax_state_sharding"):
        yield
        return

    def enforce(
        trainable_variables: Any = None, non_trainable_variables: Any = None, optimizer_variables: Any = None,
        metrics_variables: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        state = (trainable_variables, non_trainable_variables, optimizer_variables, metrics_variables)
        return tuple(part or [] for part in state)

    with instead(model, "_enforce_jax_state_sharding", enforce):
        yield


def _products_on_jax(jaxpr: Any) -> Counter[str]:
    """The products in a graph of JAX's, and in all that it calls."""
    found = (each for each in operations_of(jaxpr) if each.primitive.name in _ON_JAX)
    return Counter(str(each.invars[0].aval.dtype) for each in found)


def _products_on_torch(torch: ModuleType, counts: Counter[str]) -> Any:
    """A context in which each product of matrices is counted by its format."""
    mode = __import__("torch.utils._python_dispatch", fromlist=["TorchDispatchMode"]).TorchDispatchMode

    class Products(mode):  # type: ignore[misc, valid-type]  # PyTorch's own class, known when this runs
        def __torch_dispatch__(
            self, operation: Any, kinds: object, args: Sequence[object] = (), kwargs: dict[str, object] | None = None
        ) -> object:
            if operation.overloadpacket.__name__ in _ON_TORCH:
                tensors = [value for value in args if isinstance(value, torch.Tensor)]
                counts[str(tensors[-1].dtype).removeprefix("torch.")] += 1
            return operation(*args, **(kwargs or {}))

    return Products()
