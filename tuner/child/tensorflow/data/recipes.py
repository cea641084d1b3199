"""How a tf.data dataset was made: recorded while the script makes it, read as a tree, made again with changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from ...patches import patch

# What joins several datasets; every other method has the one that it is called on.
JOINS = ("zip", "concatenate", "sample_from_datasets", "choose_from_datasets")
METHODS = (
    "apply", "batch", "bucket_by_sequence_length", "cache", "enumerate", "filter", "flat_map", "group_by_window",
    "ignore_errors", "interleave", "map", "padded_batch", "prefetch", "ragged_batch", "rebatch", "rejection_resample",
    "repeat", "scan", "shard", "shuffle", "skip", "snapshot", "sparse_batch", "take", "take_while", "unbatch",
    "unique", "window", "with_options", *JOINS,
)  # fmt: skip
# Functions of tf.data.experimental that make what is handed to ``apply``.
FACTORIES = ("assert_cardinality", "map_and_batch", "dense_to_ragged_batch", "dense_to_sparse_batch")
# Made of others inside TensorFlow, but never to be taken apart: its maps hold the state of a Python generator.
WHOLE = ("from_generator",)

_RECORD = "_autotune_record"
_FACTORY = "_autotune_factory"

Call = Callable[[Sequence[Any], Mapping[str, Any]], Any]


class Refused(Exception):
    """A change that this dataset doesn't allow; the text is the reason, as a short clause.

    ``final``: cutting the ready batches anew is no way around it either.
    """

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


@dataclass(frozen=True)
class _Slot:
    """Stands in recorded arguments for a dataset."""

    index: int


@dataclass(eq=False)
class Recipe:
    """One recorded call: datasets in, one dataset out."""

    method: str
    inputs: tuple[Any, ...]
    arguments: dict[str, Any]
    call: Call


@dataclass(eq=False)
class Record:
    """What is kept with a dataset. An attribute of it: a change of it refers to it, which no weak mapping survives."""

    recipe: Recipe | None = None
    adapted: Any = None
    written: Any = None
    factor: float = 1.0
    kept: dict[Any, Any] = field(default_factory=dict)
    cached: bool = False


@dataclass(frozen=True, eq=False)
class Node:
    """A dataset in the tree of how the last one was made; ``dataset`` is the script's own, None for a link of ours."""

    method: str
    inputs: tuple[Node, ...]
    arguments: Mapping[str, Any]
    dataset: Any
    call: Call
    changed: bool = False
    kept: Record | None = None  # where what is built from this node is kept for the next tree that has it

    def on(self, *inputs: Node) -> Node:
        """The same link behind other datasets."""
        if len(inputs) == len(self.inputs) and all(a is b for a, b in zip(inputs, self.inputs, strict=True)):
            return self
        return replace(self, inputs=inputs, changed=True)

    def but(self, without: Sequence[str] = (), **arguments: Any) -> Node:
        """The same link with other arguments."""
        kept = {name: value for name, value in self.arguments.items() if name not in without}
        return replace(self, arguments={**kept, **arguments}, changed=True)

    def then(self, method: str, **arguments: Any) -> Node:
        """A link of ours behind this one."""

        def call(inputs: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
            return getattr(inputs[0], method)(**arguments)

        return Node(method, (self,), arguments, None, call, changed=True)

    def all(self) -> Iterator[Node]:
        """The node and everything below, each once."""
        seen: set[int] = set()
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if id(node) not in seen:
                seen.add(id(node))
                yield node
                waiting.extend(reversed(node.inputs))

    def rewritten(self, edit: Callable[[Node], Node]) -> Node:
        """The tree with every node replaced by ``edit`` of it, from the sources upwards."""
        done: dict[int, Node] = {}

        def visit(node: Node) -> Node:
            if id(node) not in done:
                done[id(node)] = edit(node.on(*(visit(source) for source in node.inputs)))
            return done[id(node)]

        return visit(self)

    def build(self) -> Any:
        """The dataset; the parts that nothing has changed are the script's own objects."""
        done: dict[Any, Any] = {}

        def make(node: Node) -> Any:
            if not any(below.changed for below in node.all()):
                return node.dataset
            if id(node) not in done:
                kept: dict[Any, Any] = done if node.kept is None else node.kept.kept
                key: Any = id(node) if node.kept is None else node.key()
                if key not in kept:
                    kept[key] = node.call([make(source) for source in node.inputs], node.arguments)
                done[id(node)] = kept[key]
            return done[id(node)]

        return make(self)

    def key(self) -> tuple[Any, ...]:
        """Equal for trees over the same datasets of the script with the same numbers in their changed calls."""
        numbers = ("batch_size", "num_parallel_calls", "buffer_size", "count")
        return tuple((x.method, id(x.dataset), *(repr(x.arguments.get(n)) for n in numbers)) for x in self.all())


class RecipeBook:
    """Records what the script does to datasets, eagerly only: in a graph there is no dataset to make again."""

    def __init__(self, tf: ModuleType) -> None:
        self.tf = tf

    def install(self) -> None:
        """Patches tf.data's methods; none of them does anything else than before."""
        dataset = self.tf.data.Dataset
        for name in (*METHODS, *WHOLE):
            if hasattr(dataset, name):
                patch(dataset, name, self._recording(name))
        for name in FACTORIES:
            if hasattr(self.tf.data.experimental, name):
                patch(self.tf.data.experimental, name, _remembering(name))

    def is_dataset(self, value: Any) -> bool:
        """Whether it is a tf.data dataset (a distributed one isn't)."""
        return isinstance(value, self.tf.data.Dataset)

    def record(self, dataset: Any) -> Record:
        """What is kept with the dataset."""
        found = dataset.__dict__.get(_RECORD)
        if found is None:
            found = Record()
            setattr(dataset, _RECORD, found)
        return found  # type: ignore[no-any-return]

    def _recording(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            signature = inspect.signature(original)
            eager = self.tf.executing_eagerly

            def method(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if eager() and self.is_dataset(result):
                    self._keep(name, original, signature.bind(*args, **kwargs), result)
                return result

            # Autograph's own mark for "call as it is". Its decorator would also keep it from the functions handed in.
            method.autograph_info__ = None  # type: ignore[attr-defined]
            return method

        return make

    def _keep(self, name: str, original: Callable[..., Any], bound: inspect.BoundArguments, result: Any) -> None:
        record = self.record(result)
        if name in WHOLE:
            record.recipe = Recipe(name, (), {}, lambda inputs, arguments: result)
            return
        inputs: list[Any] = []
        if name in JOINS:
            arguments = {key: self._without_datasets(value, inputs) for key, value in bound.arguments.items()}
        else:
            own = next(iter(bound.signature.parameters))
            arguments = {key: value for key, value in bound.arguments.items() if key != own}
            arguments[own] = self._without_datasets(bound.arguments[own], inputs)
        if any(result is given for given in inputs):
            return  # the function handed to apply may give back what it was given
        if name == "shuffle":
            arguments = {**arguments, **_seed_of(result)}
        if name != "apply":
            record.recipe = Recipe(name, tuple(inputs), arguments, _calling(original, bound.signature))
        elif record.recipe is None:  # else it is known better: by what the function did
            factory = getattr(bound.arguments.get("transformation_func"), _FACTORY, None)
            if factory is None:
                record.recipe = Recipe(name, tuple(inputs), arguments, _calling(original, bound.signature))
            else:
                record.recipe = Recipe(factory[0], tuple(inputs), factory[2], _applying(factory[1]))

    def _without_datasets(self, value: Any, inputs: list[Any]) -> Any:
        if self.is_dataset(value):
            inputs.append(value)
            return _Slot(len(inputs) - 1)
        if isinstance(value, dict):
            return type(value)((key, self._without_datasets(item, inputs)) for key, item in value.items())
        return _sequence(value, [self._without_datasets(v, inputs) for v in value]) if _is_sequence(value) else value

    def read(self, dataset: Any) -> Node:
        """The tree of how the dataset was made, down to datasets of which nothing is known."""
        done: dict[int, Node] = {}

        def visit(dataset: Any) -> Node:
            if id(dataset) not in done:
                recipe = self.record(dataset).recipe
                if recipe is None:
                    done[id(dataset)] = Node(type(dataset).__name__, (), {}, dataset, lambda _, __: dataset)
                else:
                    inputs = tuple(visit(given) for given in recipe.inputs)
                    done[id(dataset)] = Node(recipe.method, inputs, recipe.arguments, dataset, recipe.call)
            return done[id(dataset)]

        return visit(dataset)


def _seed_of(shuffled: Any) -> dict[str, int]:
    """The seed that TensorFlow drew for a shuffle: made again it has the same order, and draws no other."""
    seed, own = (getattr(shuffled, name, None) for name in ("_seed", "_seed2"))
    return {} if seed is None or own is None or not (int(seed) or int(own)) else {"seed": int(own)}


def _calling(original: Callable[..., Any], signature: inspect.Signature) -> Call:
    def call(inputs: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
        filled = {name: _with_datasets(value, inputs) for name, value in arguments.items()}
        bound = inspect.BoundArguments(signature, filled)
        return original(*bound.args, **bound.kwargs)

    return call


def _applying(factory: Callable[..., Any]) -> Call:
    def call(inputs: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
        return inputs[0].apply(factory(**arguments))

    return call


def _remembering(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def factory(*args: Any, **kwargs: Any) -> Any:
            function = original(*args, **kwargs)
            setattr(function, _FACTORY, (name, original, dict(signature.bind(*args, **kwargs).arguments)))
            return function

        factory.autograph_info__ = None  # type: ignore[attr-defined]
        return factory

    return make


def _with_datasets(value: Any, inputs: Sequence[Any]) -> Any:
    if isinstance(value, _Slot):
        return inputs[value.index]
    if isinstance(value, dict):
        return type(value)((key, _with_datasets(item, inputs)) for key, item in value.items())
    return _sequence(value, [_with_datasets(item, inputs) for item in value]) if _is_sequence(value) else value


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _sequence(like: Any, items: list[Any]) -> Any:
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
