"""The parts of TensorFlow's objects that the child uses, as protocols: TensorFlow has no types, and isn't imported.

Nothing is checked while a script runs: an attribute that a version lacks raises ``AttributeError`` where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, SupportsInt, TypeVar, overload

Result = TypeVar("Result")
"""What a patched function gives back unchanged."""

Structure = object
"""Nested tuples, lists and dicts of tensors or of their specifications, as ``tf.nest`` flattens them."""

Arguments = tuple[Any, ...]
"""Positional arguments of the script's, of any kind."""

Keywords = dict[str, Any]
"""Keyword arguments of the script's, of any kind."""


class Shape(Protocol):
    """``tf.TensorShape``. A dimension that isn't known is None, and so is the rank of a shape that isn't."""

    @property
    def rank(self) -> int | None: ...
    def as_list(self) -> list[int | None]: ...
    def is_fully_defined(self) -> bool: ...
    def num_elements(self) -> int: ...
    def __iter__(self) -> Iterator[int | None]: ...
    @overload
    def __getitem__(self, index: int) -> int | None: ...
    @overload
    def __getitem__(self, index: slice) -> Shape: ...


class DType(Protocol):
    """``tf.DType``; ``size`` is in bytes."""

    name: str
    size: int
    is_floating: bool
    is_integer: bool


class Array(Protocol):
    """A NumPy array or scalar."""

    shape: tuple[int, ...]
    dtype: object
    nbytes: int

    def tolist(self) -> Any: ...
    def ravel(self) -> Array: ...
    def __getitem__(self, index: slice) -> Array: ...
    def __float__(self) -> float: ...
    def __int__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...


class Tensor(Protocol):
    """A tensor; only an eager one has ``numpy``."""

    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> DType: ...
    def numpy(self) -> Array: ...
    def set_shape(self, shape: Sequence[int | None]) -> None: ...


class Variable(Protocol):
    """A variable of a resource; what changes it may be called while a graph is built."""

    path: str
    shape: Iterable[int | None]
    dtype: object
    device: str

    def numpy(self) -> Array: ...
    def assign(self, value: object) -> object: ...
    def assign_add(self, value: object) -> object: ...
    def scatter_update(self, values: object) -> object: ...


# graphs


class NamedFunction(Protocol):
    """The name of a function in a graph's library."""

    name: str


class FunctionList(Protocol):
    """Several of them."""

    func: Sequence[NamedFunction]


class Table(Protocol):
    """A table of ``tf.lookup``."""

    resource_handle: Tensor


class TensorProto(Protocol):
    """A figure that is written into a graph."""

    def SerializeToString(self) -> bytes: ...


class AttrValue(Protocol):
    """An attribute of a node: the one field of these that is set."""

    func: NamedFunction
    list: FunctionList
    type: int
    tensor: TensorProto
    b: bool

    def HasField(self, name: str) -> bool: ...


class NodeDef(Protocol):
    """An operation: its inputs are names of nodes, with ``:`` and the number of the output."""

    name: str
    op: str
    input: Sequence[str]
    attr: Mapping[str, AttrValue]


class FunctionDef(Protocol):
    """A function in a graph's library."""

    signature: NamedFunction
    node_def: Sequence[NodeDef]
    attr: Mapping[str, AttrValue]


class FunctionLibrary(Protocol):
    """The functions that a graph's nodes call."""

    function: Sequence[FunctionDef]


class GraphDef(Protocol):
    """A graph as a message."""

    node: Sequence[NodeDef]
    library: FunctionLibrary


class NamedVariable(Protocol):
    """A variable that a graph captures."""

    name: str
    handle: object
    trainable: bool


class NamedTensor(Protocol):
    """A tensor of a graph."""

    name: str


class Graph(Protocol):
    """What a function is traced into. ``outer_graph`` is declared on graphs of functions only."""

    inputs: Sequence[Tensor]
    outer_graph: Graph
    variables: Sequence[NamedVariable]
    captures: Iterable[tuple[object, NamedTensor]]

    def as_graph_def(self) -> GraphDef: ...


class ConcreteFunction(Protocol):
    """One trace of a ``tf.function``."""

    graph: Graph
    function_def: FunctionDef
    captured_inputs: Sequence[object]

    @property
    def structured_input_signature(self) -> tuple[Arguments, Keywords]: ...
    def __call__(self, *args: object) -> Sequence[Tensor]: ...


class Function(Protocol):
    """What ``tf.function`` returns."""

    name: str
    python_function: Callable[..., object]
    _jit_compile: bool | None

    def __call__(self, *args: object, **kwargs: object) -> object: ...
    def experimental_get_tracing_count(self) -> int: ...
    def get_concrete_function(self, *args: object, **kwargs: object) -> ConcreteFunction: ...
    def _list_all_concrete_functions(self) -> Sequence[ConcreteFunction]: ...
    def _clone(self, python_function: Callable[..., object] | None) -> Function: ...


# data


class WrappedFunction(Protocol):
    """A function that was handed to a dataset, as traced."""

    function: ConcreteFunction
    _func: Callable[..., object]
    _input_structure: Structure


class ThreadingOptions(Protocol):
    """``tf.data.ThreadingOptions``."""

    private_threadpool_size: int | None


class Options(Protocol):
    """``tf.data.Options``; None is TensorFlow's own choice."""

    deterministic: bool | None
    threading: ThreadingOptions


class Dataset(Protocol):
    """``tf.data.Dataset``."""

    element_spec: Structure
    _map_func: WrappedFunction

    def __iter__(self) -> DatasetIterator: ...
    def cardinality(self) -> SupportsInt: ...
    def options(self) -> Options: ...
    def take(self, count: int) -> Dataset: ...
    def cache(self) -> Dataset: ...
    def repeat(self) -> Dataset: ...
    def batch(self, batch_size: int) -> Dataset: ...
    def map(self, map_func: Callable[..., Structure]) -> Dataset: ...
    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset: ...
    def _functions(self) -> Sequence[WrappedFunction]: ...
    def _inputs(self) -> Sequence[Dataset]: ...


class DatasetIterator(Protocol):
    """The eager iterator over a dataset."""

    _dataset: Dataset

    def __iter__(self) -> DatasetIterator: ...
    def __next__(self) -> Structure: ...
    def get_next(self) -> Structure: ...


class ModelParameter(Protocol):
    """What tf.data may turn at a node of its plan; ``max`` is the limit."""

    name: str
    tunable: bool
    value: float
    max: float


class ModelNode(Protocol):
    """A node of the plan that tf.data executes; ``processing_time``: of all its elements so far, in nanoseconds."""

    name: str
    node_class: int
    num_elements: int
    buffered_elements: int
    processing_time: int
    inputs: Sequence[int]
    parameters: Sequence[ModelParameter]


class ModelProto(Protocol):
    """The plan that tf.data executes: nodes by number, ``output`` the last of them."""

    nodes: Mapping[int, ModelNode]
    output: int


# training


class Strategy(Protocol):
    """``tf.distribute.Strategy``."""

    num_replicas_in_sync: int

    def experimental_local_results(self, value: object) -> Sequence[object]: ...


class Optimizer(Protocol):
    """A Keras optimizer, as a loop of the script's own may use it too."""

    iterations: Variable
    gradient_accumulation_steps: int | None
