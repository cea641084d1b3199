"""Keras and TensorFlow in the list of adapters, for all of Keras' backends: these differ below ``Model.fit`` only."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from types import ModuleType

from ..adapter import Adapter, Library
from ..feeds import FED
from ..resting import tell_at_work
from ..session import Session
from ..tensorflow import FRAMEWORK, files
from ..tensorflow.seeds import seed
from ..turns import are_ahead
from ..watch import Watch
from .applied import AppliedKnobs
from .evidence import Observation
from .losses import LossReader
from .model import accumulation_of
from .switch import KerasSwitcher
from .watches import Watches

OLDEST = (3, 8)


class KerasAdapter(Adapter):
    """One trial's instrumentation of Keras and TensorFlow. Either may be imported first, or alone."""

    framework = FRAMEWORK

    def __init__(self, session: Session) -> None:
        self.session = session
        self.losses = LossReader()
        self.watches = Watches(session, self.losses.epoch_begins)
        self._loss_at = 0.0
        self._reads_loss = session.uses(Watch.LOSSES)
        if session.applied is not None:
            session.applied.attend(AppliedKnobs(self.watches).effects)

    @property
    def libraries(self) -> Mapping[str, Library]:
        """TensorFlow, Keras, and what writes past ``open``."""
        return {
            "tensorflow": Library(
                self.watches.watch_tensorflow, is_framework=True, seed=seed,
                configure=self._configure, feed=self.watches.watch_data,
            ),
            "keras": Library(self.watches.watch_keras, is_framework=True, oldest=OLDEST),
            **{name: Library(divert=divert) for name, divert in files.DIVERTED.items()},
        }  # fmt: skip

    def _configure(self, tf: ModuleType) -> None:
        """Threads and memory, before TensorFlow's runtime starts."""
        session = self.session
        if session.trained_by in FED:
            return  # the knobs of that name are another framework's
        if session.knobs.wants("threads"):
            tf.config.threading.set_intra_op_parallelism_threads(int(session.request.config["threads"]))
        if session.knobs.wants("inter_op_threads"):
            tf.config.threading.set_inter_op_parallelism_threads(int(session.request.config["inter_op_threads"]))
        self._cap_memory(tf)

    def _cap_memory(self, tf: ModuleType) -> None:
        """A config that takes too much fails here, and no neighbour on the card does.

        A card whose memory is taken as it is needed can't be capped as well, and a script that asks for that would be
        refused it: only where the baseline is known not to. Elsewhere the limit is only held against.
        """
        request, device = self.session.request, self.session.device
        if self.session.knobs.wants("memory_growth"):
            device.tensorflow_set_growth(tf, bool(request.config["memory_growth"]))
        elif request.max_device_bytes and request.config and request.knowledge.as_written.get("memory_growth") is False:
            device.tensorflow_cap_memory(tf, request.max_device_bytes)

    # the clock's hooks

    def synchronize(self) -> None:
        """Waits for the device, and takes what graphs have counted."""
        watches = self.watches
        if watches.tf is not None and watches.backend == "tensorflow":
            self.session.device.tensorflow_synchronize(watches.tf)
        if watches.fits is not None:
            watches.fits.steps.synchronize()
        if watches.loops is not None:
            watches.loops.synchronize()

    def activity(self) -> int:
        """Traces of training functions, what XLA compiles, changes of the data, a cache that is full by now."""
        in_loops = self.watches.loops.activity() if self.watches.loops is not None else 0
        datasets = self.watches.datasets
        full = int(datasets is not None and datasets.filling.begins_anew)
        steps = self.watches.fits.steps if self.watches.fits is not None else None
        # Where configs take turns one of them is left out instead: see ``KerasSwitcher.disturbed``.
        noted = steps.graph if steps is not None and steps.by_turns is None else None
        shapes = noted.shapes.number if noted is not None else 0
        return full + in_loops + shapes + (steps.made.earlier + steps.traces if steps is not None else 0)

    def ready(self) -> float | None:
        """What was made of the training data, and wasn't fetched; not asked in a screen, where nothing is timed."""
        watches = self.watches
        if self.session.request.window.until_samples:
            return None
        if watches.fits is not None and watches.fits.call is not None:
            return watches.fits.steps.queues.samples(self._size)
        return watches.loops.iterations.ready_samples() if watches.loops is not None else None

    def _at_work(self, computing: float) -> float:
        """As ``Feed.at_work``, of what feeds ``Model.fit`` or a loop."""
        fits, loops = self.watches.fits, self.watches.loops
        if fits is not None and fits.call is not None:
            return fits.steps.queues.at_work(self._size, computing)
        return loops.iterations.pipeline.at_work(self._size, computing) if loops is not None else 0.0

    @property
    def _begins_as_taken(self) -> bool:
        """As ``Feed.begins_as_taken``; a loop of TensorFlow's is fed by tf.data."""
        fits = self.watches.fits
        return fits is None or fits.call is None or fits.steps.queues.begins_as_taken

    @property
    def _size(self) -> int:
        """Samples in the largest batch of ``Model.fit``, in most batches of a loop; 0 where none were seen."""
        fits, loops = self.watches.fits, self.watches.loops
        if fits is not None and fits.call is not None:
            return fits.steps.largest_batch
        return loops.iterations.size if loops is not None else 0

    @property
    def _steps_a_batch(self) -> float:
        """Steps that take one batch, by the samples so far; 1.0 where these aren't counted."""
        clock = self.session.clock
        return self._size * clock.total_steps / clock.total_samples if self._size and clock.total_samples else 1.0

    def _counted(self, batches: int) -> int:
        """The batches in what a rate counts: samples, or steps."""
        clock, counts = self.session.clock, self.session.facts.unit == "samples"
        a_step = clock.total_samples / clock.total_steps if counts and clock.total_steps else 1.0
        return round(batches * self._steps_a_batch * a_step)

    @property
    def _capacity(self) -> int:
        """Batches that can lie ready: a window shorter than this measures a queue that was filled before."""
        watches, loops = self.watches, self.watches.loops
        if watches.fits is not None and watches.fits.call is not None:
            seen = watches.fits.steps.queues.capacity(self._size)
        else:
            seen = loops.iterations.pipeline.capacity(self._size) if loops is not None else 0
        prefetched = watches.datasets.prefetched if watches.datasets is not None else 0
        return seen or (prefetched if isinstance(prefetched, int) else 0)

    def _remark_what_is_unseen(self) -> None:
        """That a rate may hold what was made before it, where nothing shows how much that was."""
        fits, loops = self.watches.fits, self.watches.loops
        if fits is not None and fits.call is not None:
            unseen = fits.call.fed_by == "dataset" and fits.steps.queues.is_unseen
        else:
            unseen = loops is not None and loops.iterations.is_unseen
        prefetched = self.watches.datasets.prefetched if self.watches.datasets is not None else 0
        if not (prefetched and unseen):
            return
        facts, hidden = self.session.facts, "what lies ready of them can't be seen"
        late = "after a slow start a rate may still hold some that were made before"
        if isinstance(prefetched, int):
            facts.unseen_samples = self._counted(prefetched)
            facts.remark(f"the data prefetch {prefetched} batches, and {hidden}: windows are longer for it, and {late}")
        else:
            facts.remark(
                f"the data prefetch as many batches as TensorFlow likes, and {hidden}: {late}, and nothing is taken off"
                " a rate for it"
            )

    def may_go_off(self) -> bool:
        """In ``fit``. TensorFlow's graph counts what it trains on all the same."""
        fits, instruments = self.watches.fits, self.session.clock.instruments
        instruments.counts_samples = self.watches.backend != "tensorflow"
        return fits is not None and bool(fits.nesting.fits) and fits.steps.by_turns is None

    def on_block(self) -> None:
        """Reads the losses."""
        clock, asynchronous = self.session.clock, self.session.device.asynchronous
        clock.min_window_steps = math.ceil(3 * self._capacity * self._steps_a_batch)
        tell_at_work(clock.turns, self._at_work, asynchronous=asynchronous, as_taken=self._begins_as_taken)
        if self.watches.backend == "torch" and are_ahead(self.session.clock.turns):
            self.session.device.torch_note_overhead(sys.modules["torch"], self.session.request.used_device_bytes)
        progress, self._loss_at = self._loss_at, self.session.clock.progress
        # Nothing was trained on since: what the model's metrics hold now is of its validation.
        losses = self.losses.read(self.watches) if self._reads_loss and self._loss_at > progress else {}
        for name, loss in losses.items():
            self.session.loss(loss, name)

    def switcher(self) -> KerasSwitcher:
        """Switches the knobs that a model has between two calls of its training function."""
        return KerasSwitcher(self.watches, self.losses.epoch_begins)

    def observe(self) -> None:
        """Facts and evidence, where this framework trained."""
        fits = self.watches.fits
        # A rotation whose time is up ends in whichever turn it is.
        with nullcontext() if fits is None else fits.as_written():
            self._observe()

    def _observe(self) -> None:
        if self.session.trained_by == FRAMEWORK:
            Observation(self.session, self.watches).observe()
            self._remark_what_is_unseen()
            self._tell_of_no_update()

    def _tell_of_no_update(self) -> None:
        """Fails where the script ended before Keras updated anything: it sums more gradients than it has batches."""
        fits, session = self.watches.fits, self.session
        if fits is None or fits.call is None or session.clock.total_steps or session.ended_badly:
            return
        batches, summed = fits.steps.batches_trained, accumulation_of(fits.call.model)
        if 0 < batches < summed:
            session.fail(
                "unsupported",
                f"it trains on {batches} batches in all, and its gradient_accumulation_steps is {summed}: Keras updates"
                " no weights before so many",
            )
