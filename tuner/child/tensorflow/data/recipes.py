"""How a tf.data dataset was made: recorded while the script makes it, read as a tree, made again with changes."""

from __future__ import annotations

import inspect
import os
import random
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, TypeVar

from ...patches import patch
from ..types import Dataset
from .refused import Refused
from .traced import made_again

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

_SEEDS = 2**31 - 1
"""TensorFlow takes seeds modulo that."""
_RECORD = "_autotune_record"
_FACTORY = "_autotune_factory"

Arguments = Mapping[str, Any]
"""Arguments of a call by name; what the script passes is of any kind."""
Call = Callable[[Sequence[Dataset], Arguments], Dataset]
"""Makes a dataset of its inputs and the arguments of the recorded call."""
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class _Slot:
    """Stands in recorded arguments for the input dataset of that number."""

    index: int


@dataclass(eq=False)
class Recipe:
    """One recorded call: datasets in, one dataset out."""

    method: str
    inputs: tuple[Dataset, ...]
    arguments: Arguments
    call: Call


@dataclass(eq=False)
class Record:
    """What is remembered of one dataset, as an attribute of it.

    A dataset that was made of it refers to it, which would keep it alive in a weak mapping.

    ``adapted``: the dataset with the config's knobs; ``written``: the script's own, of an adapted one; ``factor``: the
    new batch size by the written one, and ``resizes``, whether ``adapted`` may have another one; ``built``: what was
    made on top of it, by ``Node.key``; ``cached``: whether it has been counted as cached.
    """

    recipe: Recipe | None = None
    adapted: Dataset | None = None
    written: Dataset | None = None
    factor: float = 1.0
    resizes: bool = True
    built: dict[Hashable, Dataset] = field(default_factory=dict)
    cached: bool = False


@dataclass(frozen=True, eq=False)
class Node:
    """A dataset in the tree of how the last one was made.

    ``dataset`` is the script's own, None for a link that was added. ``shared_in``: the record in which what is built
    from this node is remembered, so that the next tree that has it uses the same object. ``place``: the same in every
    changed form of the node.
    """

    method: str
    inputs: tuple[Node, ...]
    arguments: Arguments
    dataset: Dataset | None
    call: Call
    changed: bool = False
    shared_in: Record | None = None
    place: object = field(default_factory=object)

    @property
    def own(self) -> Dataset:
        """The script's own dataset. Raises ``Refused`` for a link that was added."""
        if self.dataset is None:
            raise Refused(f"{self.method} isn't the script's own")
        return self.dataset

    def on(self, *inputs: Node) -> Node:
        """The same link behind other datasets."""
        if len(inputs) == len(self.inputs) and all(a is b for a, b in zip(inputs, self.inputs, strict=True)):
            return self
        return replace(self, inputs=inputs, changed=True)

    def but(self, without: Sequence[str] = (), **arguments: object) -> Node:
        """The same link with these arguments in place of its own, and none of ``without``."""
        remaining = {name: value for name, value in self.arguments.items() if name not in without}
        return replace(self, arguments={**remaining, **arguments}, changed=True)

    def then(self, method: str, **arguments: object) -> Node:
        """This node with a link added behind it."""

        def call(inputs: Sequence[Dataset], arguments: Arguments) -> Dataset:
            dataset: Dataset = getattr(inputs[0], method)(**arguments)
            return dataset

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

    def made_on(self, inputs: Sequence[Dataset]) -> Dataset:
        """What this link makes of the inputs. Raises ``Refused`` where its functions aren't what they were."""
        record: Record | None = vars(self.dataset).get(_RECORD) if self.dataset is not None else None
        if self.dataset is None or record is None or record.recipe is None:
            return self.call(inputs, self.arguments)
        made, why = made_again(self.dataset, record.recipe.inputs, lambda: self.call(inputs, self.arguments))
        if why:
            raise Refused(why, final=True)
        return made

    def build(self) -> Dataset:
        """The dataset; the parts that nothing has changed are the script's own objects."""
        done: dict[Hashable, Dataset] = {}

        def build_node(node: Node) -> Dataset:
            if node.dataset is not None and not any(below.changed for below in node.all()):
                return node.dataset
            if id(node) not in done:
                built = done if node.shared_in is None else node.shared_in.built
                key: Hashable = id(node) if node.shared_in is None else node.key()
                if key not in built:
                    built[key] = node.made_on([build_node(source) for source in node.inputs])
                done[id(node)] = built[key]
            return done[id(node)]

        return build_node(self)

    def key(self) -> Hashable:
        """Equal for trees over the same datasets of the script with the same numbers in their changed calls."""
        numbers = ("batch_size", "num_parallel_calls", "deterministic", "buffer_size", "count")
        return tuple((x.method, id(x.dataset), *(repr(x.arguments.get(n)) for n in numbers)) for x in self.all())


@dataclass(frozen=True)
class Seeds:
    """What TensorFlow draws the seeds of the next operations from: the script's own seed, and the state of a generator.

    A call that is made again draws the same seeds, and takes none from the script's next calls.
    """

    seed: int | None
    state: tuple[Any, ...] | None

    @staticmethod
    def now() -> Seeds:
        """As they are. Without a seed of the script's, nothing can be drawn again."""
        context = sys.modules["tensorflow.python.eager.context"].context()
        seed: int | None = context._seed
        return Seeds(seed, None if seed is None else context._rng.getstate())

    def drawn_by(self, call: Callable[..., Dataset]) -> Callable[..., Dataset]:
        """The call with these seeds; those of now are as before afterwards."""

        def seeded(*args: object, **kwargs: object) -> Dataset:
            context = sys.modules["tensorflow.python.eager.context"].context()
            before = context._seed, getattr(context, "_rng", None)
            generator = random.Random()
            if self.state is not None:
                generator.setstate(self.state)
            context._seed, context._rng = self.seed, generator
            try:
                return call(*args, **kwargs)
            finally:
                context._seed, context._rng = before

        return seeded


class RecipeBook:
    """Records what the script does to datasets, eagerly only: in a graph there is no dataset to make again."""

    def __init__(self, tf: ModuleType) -> None:
        self.tf = tf

    def install(self) -> None:
        """Patches tf.data's methods; none of them does anything else than before, but for ``_with_a_seed``."""
        dataset = self.tf.data.Dataset
        for name in (*METHODS, *WHOLE):
            if hasattr(dataset, name):
                patch(dataset, name, self._recording(name))
        for name in FACTORIES:
            if hasattr(self.tf.data.experimental, name):
                patch(self.tf.data.experimental, name, _remembering(name))

    def is_dataset(self, value: object) -> bool:
        """Whether it is a tf.data dataset (a distributed one isn't)."""
        return isinstance(value, self.tf.data.Dataset)

    def record(self, dataset: Dataset) -> Record:
        """What is remembered of the dataset; made where there is nothing yet."""
        record: Record | None = vars(dataset).get(_RECORD)
        if record is None:
            record = Record()
            setattr(dataset, _RECORD, record)
        return record

    def _recording(self, name: str) -> Callable[[Callable[..., Dataset]], Callable[..., Dataset]]:
        def wrap(original: Callable[..., Dataset]) -> Callable[..., Dataset]:
            signature = inspect.signature(original)
            eager = self.tf.executing_eagerly

            def method(*args: object, **kwargs: object) -> Dataset:
                seeds = Seeds.now()
                if name == "shuffle" and seeds.seed is None and eager():
                    args, kwargs = _with_a_seed(signature, args, kwargs)
                result = original(*args, **kwargs)
                if eager() and self.is_dataset(result):
                    self._remember(name, seeds.drawn_by(original), signature.bind(*args, **kwargs), result)
                return result

            return _not_rewritten(method)

        return wrap

    def _remember(
        self, name: str, original: Callable[..., Dataset], bound: inspect.BoundArguments, result: Dataset
    ) -> None:
        record = self.record(result)
        if name in WHOLE:
            record.recipe = Recipe(name, (), {}, lambda inputs, arguments: result)
            return
        inputs: list[Dataset] = []
        if name in JOINS:
            arguments = {key: self._without_datasets(value, inputs) for key, value in bound.arguments.items()}
        else:
            own = next(iter(bound.signature.parameters))
            arguments = {key: value for key, value in bound.arguments.items() if key != own}
            arguments[own] = self._without_datasets(bound.arguments[own], inputs)
        if any(result is dataset for dataset in inputs):
            return  # the function handed to apply may return its argument
        if name != "apply":
            record.recipe = Recipe(name, tuple(inputs), arguments, _calling(original, bound.signature))
        elif record.recipe is None:  # else it is known better: by what the function did
            factory = getattr(bound.arguments.get("transformation_func"), _FACTORY, None)
            if factory is None:
                record.recipe = Recipe(name, tuple(inputs), arguments, _calling(original, bound.signature))
            else:
                record.recipe = Recipe(factory[0], tuple(inputs), factory[2], _applying(factory[1]))

    def _without_datasets(self, value: Any, inputs: list[Dataset]) -> Any:
        """The value with a slot in place of each dataset in it, which is appended to ``inputs``."""
        if self.is_dataset(value):
            inputs.append(value)
            return _Slot(len(inputs) - 1)
        return _mapped(value, lambda item: self._without_datasets(item, inputs))

    def read(self, dataset: Dataset) -> Node:
        """The tree of how the dataset was made, down to datasets of which nothing is known."""
        done: dict[int, Node] = {}

        def visit(dataset: Dataset) -> Node:
            if id(dataset) not in done:
                recipe = self.record(dataset).recipe
                if recipe is None:
                    done[id(dataset)] = Node(type(dataset).__name__, (), {}, dataset, lambda _, __: dataset)
                else:
                    inputs = tuple(visit(source) for source in recipe.inputs)
                    done[id(dataset)] = Node(recipe.method, inputs, recipe.arguments, dataset, recipe.call)
            return done[id(dataset)]

        return visit(dataset)


def _with_a_seed(
    signature: inspect.Signature, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments of a shuffle; of one whose order lasts, and which nobody seeds, with a seed that is drawn here.

    TensorFlow draws one that nobody can read. A script may split such data (``take``, ``skip``): one part that is made
    again has to keep the order that the other one has, or what validates is trained on.
    """
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return args, kwargs  # the call raises the script's own TypeError
    lasts = bound.arguments.get("reshuffle_each_iteration") is False
    if not lasts or bound.arguments.get("seed") is not None:
        return args, kwargs
    bound.arguments["seed"] = 1 + int.from_bytes(os.urandom(4), "little") % (_SEEDS - 1)
    return bound.args, bound.kwargs


def _not_rewritten(function: Function) -> Function:
    """Autograph's own mark for "call as it is". Its decorator would also keep it from the functions handed in."""
    function.autograph_info__ = None  # type: ignore[attr-defined]  # a function takes any attribute
    return function


def _calling(original: Callable[..., Dataset], signature: inspect.Signature) -> Call:
    def call(inputs: Sequence[Dataset], arguments: Arguments) -> Dataset:
        filled = {name: _with_datasets(value, inputs) for name, value in arguments.items()}
        bound = inspect.BoundArguments(signature, filled)
        return original(*bound.args, **bound.kwargs)

    return call


def _applying(factory: Callable[..., Callable[[Dataset], Dataset]]) -> Call:
    def call(inputs: Sequence[Dataset], arguments: Arguments) -> Dataset:
        return inputs[0].apply(factory(**arguments))

    return call


def _remembering(name: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    def wrap(original: Callable[..., object]) -> Callable[..., object]:
        signature = inspect.signature(original)

        def factory(*args: object, **kwargs: object) -> object:
            function = original(*args, **kwargs)
            setattr(function, _FACTORY, (name, original, dict(signature.bind(*args, **kwargs).arguments)))
            return function

        return _not_rewritten(factory)

    return wrap


def _with_datasets(value: Any, inputs: Sequence[Dataset]) -> Any:
    """The inverse of ``RecipeBook._without_datasets``."""
    return inputs[value.index] if isinstance(value, _Slot) else _mapped(value, lambda x: _with_datasets(x, inputs))


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A dict, list or (named) tuple with each item changed; anything else as it is."""
    if isinstance(value, dict):
        return type(value)((key, change(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        items = [change(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
