"""The parts of PyTorch's objects that the child uses, as protocols: PyTorch isn't imported for its types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, SupportsFloat, TypeVar, runtime_checkable

Result = TypeVar("Result")
"""What a patched function gives back unchanged."""
Entry = TypeVar("Entry")
Wrap = Callable[[Callable[..., object]], Callable[..., object]]
"""A decorator."""
Path = object
"""Where something is saved: a path, or a file that is open."""
Arguments = dict[str, Any]
"""What the script gave a constructor, by the names of its parameters."""
Keywords = dict[str, object]
"""Keyword arguments of the script's."""
Group = dict[str, Any]
"""A parameter group of an optimizer: "params", "lr", "fused", "foreach", and what its class adds."""
Closure = Callable[[], object]
"""What an optimizer may be given to evaluate the loss anew."""


class Place(Protocol):
    """``torch.device``."""

    type: str


class Node(Protocol):
    """A node of the graph that a backward goes through. Some kinds hold more, in attributes named ``_saved_…``."""

    next_functions: Sequence[tuple[Node | None, int]]


class Tensor(SupportsFloat, Protocol):
    """A tensor. ``shape``: its sizes."""

    dtype: object
    layout: object
    device: Place
    shape: Sequence[int]
    is_sparse: bool
    is_nested: bool
    requires_grad: bool
    is_leaf: bool
    grad: Tensor | None
    grad_fn: Node | None

    def numel(self) -> int: ...
    def element_size(self) -> int: ...
    def untyped_storage(self) -> Any: ...
    def dim(self) -> int: ...
    def size(self, dim: int) -> int: ...
    def detach(self) -> Tensor: ...
    def float(self) -> Tensor: ...
    def tolist(self) -> Any: ...
    def clone(self) -> Tensor: ...
    def coalesce(self) -> Tensor: ...
    def values(self) -> Tensor: ...
    def sum(self, dim: int, *, dtype: object) -> Tensor: ...
    def __matmul__(self, other: Tensor) -> Tensor: ...
    def __sub__(self, other: Tensor) -> Tensor: ...
    def __getitem__(self, places: Tensor) -> Tensor: ...
    def flatten(self) -> Any: ...
    def reshape(self, *shape: int) -> Tensor: ...
    def is_complex(self) -> bool: ...
    def is_floating_point(self) -> bool: ...
    def is_pinned(self) -> bool: ...
    def contiguous(self, *, memory_format: object) -> Tensor: ...
    def is_contiguous(self, *, memory_format: object = ...) -> bool: ...
    def __len__(self) -> int: ...


class Module(Protocol):
    """``torch.nn.Module``, as it is called to train."""

    training: bool

    def _call_impl(self, *args: object, **kwargs: object) -> object: ...
    def parameters(self, recurse: bool = True) -> Iterator[Tensor]: ...
    def named_parameters(self) -> Iterator[tuple[str, Tensor]]: ...
    def modules(self) -> Iterator[Layer]: ...


class Layer(Module, Protocol):
    """A module in a module. Only convolutions have ``weight`` and ``in_channels``."""

    weight: Tensor
    in_channels: int


class Reducer(Protocol):
    """What exchanges the gradients of a DistributedDataParallel."""

    def _get_local_used_map(self) -> Tensor: ...


class DistributedModule(Module, Protocol):
    """``torch.nn.parallel.DistributedDataParallel``."""

    module: Module
    process_group: object
    reducer: Reducer
    find_unused_parameters: bool
    static_graph: bool
    gradient_as_bucket_view: bool

    def register_comm_hook(self, state: object, hook: Callable[..., object]) -> None: ...
    def _get_ddp_logging_data(self) -> Mapping[str, Any]: ...


class Optimizer(Protocol):
    """``torch.optim.Optimizer``."""

    param_groups: Sequence[Group]
    defaults: dict[str, object]


Tensors = Tensor | Sequence[Tensor]
Gradients = Tensors | Sequence[Tensor | None] | None
"""What a backward starts from: None means ones."""


class GradScaler(Protocol):
    """``torch.amp.GradScaler``."""

    def scale(self, value: Tensor) -> Tensor: ...
    def step(self, optimizer: Optimizer, *args: object, **kwargs: object) -> object: ...
    def unscale_(self, optimizer: Optimizer) -> None: ...
    def update(self) -> None: ...
    def get_scale(self) -> float: ...
    def is_enabled(self) -> bool: ...


class Scheduler(Protocol):
    """A learning-rate scheduler."""

    step: Callable[..., object]


class Dataset(Protocol):
    """A dataset; one that is iterated has no length."""

    def __len__(self) -> int: ...


class DataLoader(Protocol):
    """``torch.utils.data.DataLoader``."""

    num_workers: int
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory: bool
    generator: object
    dataset: object
    collate_fn: object
    _iterator: LoaderIterator | None

    def __iter__(self) -> LoaderIterator: ...
    def _get_iterator(self) -> LoaderIterator: ...


class LoaderIterator(Protocol):
    """What a DataLoader is iterated by: one that works in this process, or by workers."""

    def __next__(self) -> object: ...
    def _shutdown_workers(self) -> None: ...


class Queue(Protocol):
    """A queue between processes or threads."""

    def qsize(self) -> int: ...


@runtime_checkable
class WorkersIterator(LoaderIterator, Protocol):
    """What a DataLoader with workers is iterated by: its own bookkeeping of batches that were asked for."""

    _send_idx: int
    _rcvd_idx: int
    _num_workers: int
    _prefetch_factor: int
    _task_info: Mapping[int, Sequence[object]]
    _worker_result_queue: Queue
    _data_queue: Queue


class BatchSampler(Protocol):
    """Which samples make a batch."""

    sampler: object
    drop_last: bool


class Trainer(Protocol):
    """Lightning's trainer."""

    callback_metrics: Mapping[str, object]


class Process(Protocol):
    """A process of ``multiprocessing``, before and after its start."""

    daemon: bool
    _args: Iterable[object]
    _kwargs: Mapping[str, object]
    _config: dict[str, str]
    _target: Callable[..., object] | None

    def kill(self) -> None: ...


class ProcessContext(Protocol):
    """The processes that ``torch.multiprocessing.spawn`` started."""

    processes: Sequence[Process]
