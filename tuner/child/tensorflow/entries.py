"""What is known of one tf.function of the script's."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from .counters import Counters, Counts
from .fetches import Fetches
from .types import Arguments, Function, Graph, Keywords, Optimizer

Given = tuple[Arguments, Keywords]
"""What a function was called with."""


@dataclass
class TracedFunction:
    """One tf.function that the script calls itself, and what its traces showed. The function isn't kept alive.

    ``written_jit``: whether the script asked for XLA. ``code``: what tells it from others, the same where the script
    makes it anew; ``owner``: whose method it is. ``sources``: keys of the data sources among its arguments;
    ``fetches``: whether it fetches batches itself, ``fetched``; ``captures``: of data that are no argument; ``doubt``:
    why the samples of what it fetches aren't known.
    ``example``: specifications of its arguments. ``chosen``: what
    runs in its place; ``is_refused``: XLA can't compile it, and ``refused``, why. ``is_compiled``: whether XLA compiles
    what runs, as of its last trace, where the config asks. ``counted``: steps so far; ``is_steady``: each call has been
    one step, and isn't asked any more. ``others``: what functions count that were traced within another one, and run in
    this one. ``leading_place``: where the first gradient of a trace is taken, and by whom. ``leading_loss``: of what,
    while it is traced. ``replicas``: that take a step together, each with a part of the loss; ``averages``: the script
    takes the mean of these parts, where a strategy adds up their gradients.
    """

    reference: weakref.ref[Function]
    name: str
    written_jit: bool
    code: Hashable
    counters: Counters
    fetched: Fetches
    owner: int = 0
    calls: int = 0
    traces: int = 0
    optimizer: Optimizer | None = None
    graphs: list[Graph] = field(default_factory=list)
    takes_gradients: bool = False
    updates: bool = False
    fetches: bool = False
    captures: bool = False
    doubt: str = ""
    sources: set[str] = field(default_factory=set)
    example: Given | None = None
    chosen: Function | None = None
    promoted_calls: int = 0
    refused: str = ""
    is_refused: bool = False
    is_compiled: bool = False
    counted: float = 0.0
    is_steady: bool = False
    others: list[Counters] = field(default_factory=list)
    leading_place: tuple[object, ...] = ()
    leading_site: str = ""
    leading_tracer: int = 0
    leading_loss: object = None
    replicas: int = 1
    averages: bool = False
    taken: Counts = field(default_factory=Counts)

    @property
    def steps_itself(self) -> bool:
        """Whether a call of it changes what is trained; one may also take gradients that the script applies."""
        return self.optimizer is not None or self.updates

    @property
    def key(self) -> Hashable:
        """What its steps are known by: those of another optimizer, or of another network's method, aren't its own."""
        return self.code, self.owner if self.optimizer is None else id(self.optimizer)

    @property
    def function(self) -> Function | None:
        """The script's own; None once it is gone."""
        return self.reference()

    def trace_begins(self) -> None:
        """It may be traced now: another gradient may be the first one."""
        self.leading_place, self.leading_site, self.leading_tracer, self.leading_loss = (), "", 0, None

    def let_go(self) -> None:
        """Keeps nothing that holds weights; for a function that is gone, of which no step is counted any more."""
        self.graphs, self.optimizer, self.example, self.chosen = [], None, None, None


@dataclass(frozen=True)
class Compilation:
    """Whether the training functions ran compiled; ``why`` they didn't as asked for. ``changed``: by the config."""

    compiled: bool
    sites: int
    changed: int
    why: str = ""


def specs_of(tf: ModuleType, args: Arguments, kwargs: Keywords) -> Given | None:
    """The arguments with a specification in each tensor's place, so that no batch stays alive; None with data."""

    def spec(value: object) -> object:
        return tf.TensorSpec(value.shape, value.dtype) if isinstance(value, tf.Tensor) else value

    sources = (tf.data.Dataset, tf.data.Iterator, tf.distribute.DistributedValues)
    if any(isinstance(value, sources) for value in tf.nest.flatten((args, kwargs))):
        return None
    specs: Given = tf.nest.map_structure(spec, (args, kwargs))
    return specs


def code_of(function: Function) -> Hashable:
    """The code that the script wrote, the same for a function that it makes anew with each epoch.

    What Keras makes has the same code for every model: there it is the function itself.
    """
    python: Any = function.python_function
    while hasattr(python, "__wrapped__"):
        python = python.__wrapped__
    python = getattr(python, "__func__", python)
    code: Hashable = getattr(python, "__code__", function.name)
    return (code, id(function)) if str(getattr(python, "__module__", "")).startswith("keras.src.") else code


def owner_of(function: Function) -> int:
    """Whose method it is, by its id; 0 where it is nobody's."""
    python: Any = function.python_function
    while not hasattr(python, "__self__") and hasattr(python, "__wrapped__"):
        python = python.__wrapped__
    owner = getattr(python, "__self__", None)
    owner = getattr(owner, "target", owner) if type(owner).__name__ == "TfMethodTarget" else owner
    return 0 if owner is None else id(owner)
