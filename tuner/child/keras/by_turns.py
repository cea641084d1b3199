"""What a rotation needs of the steps of ``Model.fit``: a kept batch, and epochs of calls that differ in length."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from ..tensorflow.types import Dataset, DatasetIterator, Function, Structure, Tensor
from .types import EpochIterator, TrainFunction

KEPT_AT = 1
"""The number of the call that trains on the batch that is kept: behind the one in which everything is made."""


class Made(NamedTuple):
    """A training function as Keras made it, without what is done around its calls, and the step that it takes.

    ``earlier``: how many functions the script trained with before it, and how often these were traced.
    """

    function: TrainFunction | None
    step: object
    earlier: int = 0

    @property
    def traced(self) -> Function | None:
        """The step as a function that is traced; None where it is none."""
        return self.step if hasattr(self.step, "_list_all_concrete_functions") else None  # type: ignore[return-value]


class StepsByTurns:
    """``taken``: steps of the newest call. ``enumerates``: whether epochs go by calls of any length.

    ``batch``: of the training; None where none could be kept. ``rows``: its samples. ``own``: what the calls are fed
    by in place of the script's own iterator, whose dataset ``feeding`` refers to weakly; None for that itself.
    """

    def __init__(self, tf: ModuleType) -> None:
        self._tf = tf
        self.taken = 1
        self.enumerates = False
        self.batch: Structure = None
        self.rows = 0
        self.own: DatasetIterator | None = None
        self.feeding: Callable[[], Dataset | None] = lambda: None
        self._spec: Structure = None
        self._tails: set[int] = set()
        self._before = (0, 0)

    # a batch

    def fed(self, iterator: Any, call: int, per_call: int) -> Any:
        """What this call of the training function is to be fed by: once by a batch that is kept besides.

        In turns in which another pipeline makes the batches of the same dataset the script's own isn't asked.

        ``per_call``: the steps that it takes, as long as there are batches.
        """
        self.taken, dataset = per_call, getattr(iterator, "_dataset", None)
        if dataset is not self.feeding():
            self.feeding, self.own = (weakref.ref(dataset) if dataset is not None else lambda: None), None
        if self.own is not None:
            return self.own
        if call != KEPT_AT or type(iterator).__name__ != "OwnedIterator":
            return iterator
        try:
            batch = iterator.get_next()
        except self._tf.errors.OutOfRangeError:
            return iterator  # at its end; it says so again
        self._spec, self.taken = iterator.element_spec, 1
        try:
            kept = self._iterator(batch, 1)
        except Exception:
            kept = None
        if kept is None or kept.element_spec != self._spec:
            # It was taken from the iterator: it has to be trained on, and needn't be kept.
            return iter(self._tf.data.Dataset.from_tensors(batch))
        self.batch, self.rows = batch, self.rows_of(batch)
        return kept

    def _iterator(self, batch: Structure, count: int) -> Any:
        """Gives the batch so many times, in shapes that tell no more than those of the training."""
        tf = self._tf
        specs = tf.nest.flatten(self._spec)

        def relaxed(*parts: Structure) -> Structure:
            flat = [
                tf.raw_ops.PlaceholderWithDefault(input=part, shape=spec.shape)
                if isinstance(part, tf.Tensor) else part
                for part, spec in zip(tf.nest.flatten(parts), specs, strict=True)
            ]  # fmt: skip
            return tf.nest.pack_sequence_as(self._spec, flat)

        options = tf.data.Options()
        options.autotune.enabled = False  # an iterator that is tuned may come to its end tens of seconds late
        return iter(tf.data.Dataset.from_tensors(batch).repeat(count).map(relaxed).with_options(options))

    def rows_of(self, batch: Structure) -> int:
        """The samples of a batch; 0 where its parts don't agree on it."""
        sizes = {int(part.shape[0] or 0) for part in self._dense(batch)}
        return sizes.pop() if len(sizes) == 1 else 0

    def _dense(self, batch: Structure) -> list[Tensor]:
        """Its parts, where all of them are plain tensors of samples; else none."""
        parts = self._tf.nest.flatten(batch)
        plain = all(isinstance(part, self._tf.Tensor) and part.shape.rank for part in parts)
        return parts if plain else []

    # sizes of batches

    def epoch_begins(self, samples: int, batches: int, largest: int) -> None:
        """Another epoch of training begins, after so many samples and batches in all; ``largest``: of a batch."""
        (samples_before, batches_before), self._before = self._before, (samples, batches)
        left = samples - samples_before - (batches - batches_before - 1) * largest
        if batches > batches_before and 0 < left < largest:
            self._tails.add(left)

    def rehearse(self, function: TrainFunction, per_call: int, sizes: set[int]) -> int:
        """Trains on the kept batch, and on it cut or repeated to each of these sizes; how many samples that were.

        Twice on each: what is compiled in the first call runs in the second. Raises what the step raises.
        """
        trained = 0
        batches = [self.batch]
        if self.rows:
            batches = [self._of(size) for size in sorted({*sizes, *self._tails, self.rows} - {0}, reverse=True)]
        for batch in batches:
            iterator = self._iterator(batch, 2)
            for _ in range(1 if per_call > 1 else 2):
                function(iterator)
            trained += 2 * self.rows_of(batch)
        return trained

    def _of(self, size: int) -> Structure:
        tf = self._tf
        places = tf.range(size) % self.rows
        return tf.nest.map_structure(lambda part: tf.gather(part, places), self.batch)

    # epochs

    def goes_through(self, epoch: EpochIterator) -> None:
        """Has this one's iterations step by what each call takes. Where Keras does it otherwise they stay."""
        enumerate_iterator: Callable[[], Iterator[Any]] | None = getattr(epoch, "_enumerate_iterator", None)
        if enumerate_iterator is None or not hasattr(epoch, "steps_per_execution"):
            return

        def by_calls() -> Iterator[Any]:
            steps = enumerate_iterator()
            for step in steps:
                yield step
                for _ in range(self.taken - 1):
                    next(steps, None)

        epoch.steps_per_execution = 1
        epoch._enumerate_iterator = by_calls
        self.enumerates = True
