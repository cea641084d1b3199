"""Which source of data trains, decided by what is fetched between gradients; no framework in it.

A source is a place of the user's code where data are iterated: a DataLoader, a tf.data dataset. A *gap* lies between
two gradients (a backward, an eager tape, a call of a training function). A source trains if it was fetched in at least
half of all gaps. The *primary* source is the one that was fetched last before the first gradient, until another one was
fetched last in more gaps. The clock counts the samples of its batches, and of a step that it had no part in those of
the source that fed it; what is fetched from a source that doesn't train is validation.

An adapter adds its sources (``DataSource``, or a subclass with what it wants to know besides), says what is fetched and
when a gradient ran, and reads the answer from here. What is fetched may be told from any thread: a script may have one
that fetches ahead. How long that one waits is no wait of the loop's, and what the loop waits isn't seen then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from .call_sites import line_stack
from .clock import StepClock
from .data_source import DataSource as DataSource
from .records import hold_lines

MANY_UNSTEPPED = 128
"""Batches after which it is worth a word that none of them is seen to train: a power of two."""
TRAINING_SHARE = 0.5
"""A source trains if it is fetched in so many of the gaps between gradients."""
FEW_UNFED = 4
"""Steps that may follow each other without a batch; later four times as many as there were between two batches."""
HARDLY_FED = 8
"""Steps to one that batches came before, by which a single batch that a model is asked about is validated on."""
SELDOM_FED = 2
"""The same of several batches that a model was asked about, where their iteration hasn't come to its end."""


@dataclass
class _Held:
    """What came in batches that may feed the first gradient: samples, their tokens, seconds waited, of these those of
    an iteration's start, and the samples of the newest batch.
    """

    samples: int = 0
    tokens: int = 0
    wait_s: float = 0.0
    start_s: float | None = None
    newest: int = 0


class Reader:
    """A framework that trains on the batches of another one's loaders. ``is_there``: whether one does; none here."""

    is_there = False

    def fetch_begins(self) -> None:
        """A batch is asked for, which is no iteration's first."""

    def idle_s(self, wait_s: float) -> float:
        """Seconds of the wait that ends now in which what computes had nothing to do."""
        return wait_s


Source = TypeVar("Source", bound=DataSource)
Batch = TypeVar("Batch")


class TrainingSources(Generic[Source]):
    """The sources of one trial, and which of them train.

    ``clock`` counts the samples of the primary source. ``known``: keys of those that trained in the baseline, empty
    where that isn't known. ``counts``: whether what is fetched counts at all; false while another framework trains.
    ``on_counted`` is called with the primary source and the samples of its newest batch, whenever batches of it count;
    ``on_unstepped`` with how many batches came without a gradient, from ``MANY_UNSTEPPED`` on with each doubling.
    ``reader``, which is set from outside: another framework that may train on them, and counts its samples by itself.
    ``before_fetch``, likewise: called where a thread that trains asks for a batch.
    ``resigns``: whether a primary source is none any more once steps go on without a batch of any. ``resigned``:
    keys of those that did (the script keeps their batches, or looked at them once) → samples that count no more by it.
    """

    def __init__(
        self,
        clock: StepClock,
        known: Collection[str],
        counts: Callable[[], bool],
        on_counted: Callable[[Source, int], None] = lambda source, samples: None,
        on_unstepped: Callable[[int], None] = lambda batches: None,
    ) -> None:
        self.known = frozenset(known)
        self._known_by_lines = hold_lines(known)
        self.primary: Source | None = None
        self.changes_of_primary = self.gaps = 0
        self.feeds_itself = False
        """Whether training steps fetch their batches themselves, in a graph: then no source need be primary."""
        self.wait_is_hidden = False
        """Whether another thread than the training's fetches the primary source: what the loop waits isn't seen."""
        self.batches = 0
        """Given to the threads that train, of all sources: another one may fetch ahead at any time."""
        self.newest_s = 0.0
        """When the newest batch came, by the clock of ``time.perf_counter``."""
        self.feeders: dict[int, Callable[[Source, int, int], None]] = {}
        """Threads that fill a library's queue → what is told there of each batch. It counts once the queue gives it,
        whose own watch tells of it."""
        self._threads = {threading.get_ident()}  # those that train: a strategy of TensorFlow's has one a replica
        self._lock = threading.RLock()
        self.before_fetch: Callable[[], None] = lambda: None
        self.resigns = False
        self.resigned: dict[str, float] = {}
        self._fed = self._fed_at = self._most_unfed = 0
        self._beside: dict[str, _Held] = {}
        """What other sources than the primary one have given since the last gradient, in their newest iterations."""
        self._alone: _Held | None = _Held()
        """What others have fed the step under way; None once the primary source has fed it, too."""
        self._newest_beside = ""
        self.replaced: dict[str, Source] = {}
        """Those that were the primary one before, by their keys: of an earlier stage, say."""
        self.fed_alone: set[str] = set()
        """Keys of sources that a step was taken on which the primary one had no part in."""
        self._clock = clock
        self._counts = counts
        self._on_counted, self._on_unstepped = on_counted, on_unstepped
        self.reader = Reader()
        self._sources: dict[str, Source] = {}
        self._gap: dict[str, Source] = {}
        self._held: dict[str, _Held] = {}
        self._kept: dict[str, tuple[object, int]] = {}
        self._drains = False

    # the sources

    def __iter__(self) -> Iterator[Source]:
        return iter(self._sources.values())

    def __getitem__(self, key: str) -> Source:
        return self._sources[key]

    def add(self, source: Source) -> Source:
        """Takes a source in, by its key; called where the user's call has led to it."""
        if self._known_by_lines and f"{line_stack()}#{len(self.at(source.stack))}" in self.known:
            self.known |= {source.key}  # a profile or a study of an earlier version knows it so
        self._sources[source.key] = source
        return source

    def at(self, stack: str) -> list[Source]:
        """The sources of one place of the user's code, oldest first; the next one's number is their count."""
        return [source for source in self if source.stack == stack]

    # what happens to them

    def fetch_begins(self, source: Source) -> None:
        """A batch, or an iteration, is asked for: training may have resumed by that, or validation begun.

        Neither by what another thread fetches: it does so ahead of both.
        """
        if threading.get_ident() not in self._threads:
            return
        self.before_fetch()
        if source is self.primary:
            self._clock.fetch_begins()
            if not source.is_beginning:
                self.reader.fetch_begins()
        elif (self.primary is not None or self.feeds_itself) and not self.is_training(source):
            self._clock.validation_begins(source.key, fetched=True)

    def iteration_began(self, source: Source, wait_s: float) -> None:
        """An iterator was made, which took so many seconds: loaders start their workers there."""
        with self._lock:
            source.begins(0.0 if self.is_fed_here else wait_s, self.gaps)
            self._clock.recurring.validates_on(source.key, is_so=source.is_validated_on)
            self._held.pop(source.key, None)
            self._beside.pop(source.key, None)
            if source is self.primary:
                self._clock.iteration_begins()

    def fetched(
        self, source: Source, samples: int, wait_s: float, tokens: int = 0, took_s: float | None = None
    ) -> None:
        """A batch of so many samples and tokens came after so many seconds: ``took_s``, where less of them count.

        Until the primary source is known those of its newest iteration are held: statistics are taken in another.
        """
        feed = self.feeders.get(threading.get_ident())
        if feed is not None:
            feed(source, samples, tokens)
            return
        with self._lock:
            source.thread, self.newest_s = threading.get_ident(), time.perf_counter()
            self.batches += source.thread in self._threads
            source.count(samples, tokens, self.gaps)
            doubled = self.batches >= MANY_UNSTEPPED and self.batches & (self.batches - 1) == 0
            if doubled and not self.gaps and not self.feeds_itself:
                self._on_unstepped(self.batches)
            start_s = source.start_ends(wait_s)
            if start_s is None:
                source.waits.append(wait_s if took_s is None else took_s)
                wait_s = self.reader.idle_s(wait_s) if source is self.primary else wait_s
            wait_s += 0.0 if start_s is None else start_s - wait_s
            self._put_in_gap(source)
            if not self._counts():
                return
            if self.primary is None:
                held = self._held.setdefault(source.key, _Held())
                held.samples, held.wait_s = held.samples + samples, held.wait_s + wait_s
                held.tokens += tokens
                held.start_s = held.start_s if start_s is None else start_s
                held.newest = samples or held.newest
            elif source is self.primary:
                self._count(source, _Held(samples, tokens, wait_s, start_s, samples))
            else:
                beside = self._beside.setdefault(source.key, _Held())
                beside.samples, beside.tokens = beside.samples + samples, beside.tokens + tokens
                if source.thread in self._threads and not self._clock.validating:
                    self._clock.add_samples(0.0, wait_s)  # the loop waits for each that feeds it

    @property
    def is_fed_here(self) -> bool:
        """Whether the thread that asks is one of the ``feeders``."""
        return threading.get_ident() in self.feeders

    def gradient_ran(self) -> bool:
        """What was fetched since the last gradient fed it. Returns True when the primary source was found by this."""
        with self._lock:
            self._threads.add(threading.get_ident())
            self._fed += bool(self._gap)
            for source in [each for each in self._gap.values() if self._is_only_evaluated(each)]:
                del self._gap[source.key]
                self._held.pop(source.key, None)
            if not self._gap:
                self._goes_unfed()
                return False
            self.gaps += 1
            if self.primary is not None or self.resigned.keys() & self._gap.keys():
                self._most_unfed = max(self._most_unfed, self._unfed)
            self._fed_at = self._clock.total_steps
            for source in self._gap.values():
                source.feeds_gradient(self._gap)
                self._clock.recurring.validates_on(source.key, is_so=False)
                self._clock.total_samples += self.resigned.pop(source.key, 0.0)  # it has many steps to a batch
            newest = next(reversed(self._gap.values()))
            if self.primary is None or self.primary.key not in self._gap:
                newest.fed += 1
            self._feeds_step(newest)
            self._gap.clear()
            self._clock.recurring.batches = (self.primary or newest).training_gaps
            if self.primary is None:
                self.primary = newest
                held = self._held.get(newest.key)
                self._held.clear()
                if held is not None:
                    self._count(newest, held)
                return True
            if newest.training_gaps > self.primary.training_gaps:
                # The first gradients came from something else: a search for a learning rate, an earlier stage.
                self.replaced[self.primary.key] = self.primary
                self.primary = newest
                self.changes_of_primary += 1
            return False

    def _feeds_step(self, newest: Source) -> None:
        """A gradient ran on what is in the gap, of which the ``newest`` came last."""
        beside, self._beside = self._beside.get(newest.key), {}
        if self.primary is None or self.primary.key in self._gap:
            self._alone = None
        elif self._alone is not None and beside is not None:
            self._alone.samples += beside.samples
            self._alone.tokens += beside.tokens
            self._newest_beside = newest.key

    def step_ends(self) -> None:
        """A step is about to be counted: one that the primary source had no part in, as where loaders train in turn,
        was taken on what others gave.
        """
        with self._lock:
            alone, self._alone = self._alone, _Held()
            if alone is not None and alone.samples:
                self.fed_alone.add(self._newest_beside)
                self._clock.add_samples(alone.samples, 0.0, alone.tokens)

    def missed(self, steps: int) -> None:
        """So many steps were taken unseen, each fed as those before."""
        self._fed_at += steps

    def _is_only_evaluated(self, source: Source) -> bool:
        """Whether its newest iteration evaluates a model: the batch that came last is none to train on either.

        A model may also label several batches, one after the other, that are trained on together.
        """
        if not source.asked_about or source.asked_about < source.given:
            return False
        steps = self._clock.total_steps
        if source.given == 1 and source is not self.primary and HARDLY_FED * self._fed <= steps:
            return True
        return 2 * source.evaluated >= source.given and (source.ended or SELDOM_FED * self._fed <= steps)

    @property
    def _unfed(self) -> int:
        """Steps since a batch fed a gradient: those that an attack or a picture takes of its input are no steps."""
        return self._clock.total_steps - self._fed_at

    def _goes_unfed(self) -> None:
        """A gradient ran, and no batch had been fetched since the one before."""
        least = max(FEW_UNFED, 4 * self._most_unfed)
        if not self.resigns or self.primary is None or self.wait_is_hidden or self.reader.is_there:
            return
        if self._unfed > least:
            self.resigned[self.primary.key] = self._clock.total_samples
            self.primary = None
            self.changes_of_primary += 1
            self._clock.total_samples = 0.0

    def was_asked(self, *, evaluated: bool = False) -> None:
        """A model was asked about the newest batch; with ``evaluated``, which nothing was then trained on."""
        with self._lock:
            source = next(reversed(self._gap.values()), None)
            if source is not None and evaluated:
                source.evaluated += 1
            elif source is not None:
                source.asked_about = min(source.asked_about + 1, source.given)

    @property
    def has_fetched(self) -> bool:
        """Whether a batch has come since the last gradient."""
        return bool(self._gap)

    @property
    def untrained_on(self) -> int | None:
        """Batches that trained before, where one has come of what trains, none of other data, and no gradient since."""
        trains = (self.primary is None or self.is_training(each) for each in self._gap.values())
        return self.gaps if self._gap and all(trains) else None

    def forget_gap(self) -> None:
        """What was fetched since the last gradient is what another library has made its batch of."""
        with self._lock:
            self._gap.clear()
            self._held.clear()

    def graph_fed_itself(self) -> None:
        """A training step fetched its batches itself: what was fetched besides didn't feed it."""
        with self._lock:
            self.feeds_itself = True
            self._gap.clear()

    # the answer

    def gap_share(self, source: Source) -> float:
        """In which share of the gaps between gradients the source was fetched; 0 before the first one."""
        return source.training_gaps / self.gaps if self.gaps else 0.0

    def is_training(self, source: Source) -> bool:
        """Whether the source feeds training."""
        if source.key in self.resigned:
            return False
        return source is self.primary or (self.gaps > 0 and self.gap_share(source) >= TRAINING_SHARE)

    def training(self) -> list[Source]:
        """The sources that feed training."""
        return [source for source in self if self.is_training(source)]

    def told_waits(self) -> list[float]:
        """The waits for the newest batches of the primary source, to the microsecond; empty where they aren't seen."""
        waits = () if self.primary is None or self.wait_is_hidden else self.primary.waits
        return [round(seconds, 6) for seconds in waits]

    # probes: one side of the loop by itself

    def first_again(self, source: Source, fetch: Callable[[], tuple[Batch, int]]) -> Batch:
        """For the compute side: the source's first batch again and again. ``fetch`` gives a batch and its samples."""
        if source.key not in self._kept:
            self._kept[source.key] = fetch()
        batch, samples = self._kept[source.key]
        self._clock.add_samples(samples, 0.0)
        with self._lock:
            self.batches += threading.get_ident() in self._threads
            source.count(samples)
            self._put_in_gap(source)
        return batch  # type: ignore[return-value]  # what this source's fetch gave before

    def drain(self, source: Source, fetch: Callable[[], tuple[int, float]], step: Callable[[], None]) -> NoReturn:
        """For the loader side: batches that nobody trains on, each of them a step, until ``step`` ends the trial.

        ``fetch`` gives a batch's samples and the seconds waited for it, and begins anew where the data end.
        """
        self.primary, self._drains = source, True
        while True:
            self.fetched(source, *fetch())
            step()

    def _put_in_gap(self, source: Source) -> None:
        self._gap.pop(source.key, None)
        self._gap[source.key] = source  # the last one fetched comes last

    def _count(self, source: Source, batch: _Held) -> None:
        if source.thread not in self._threads:
            self.wait_is_hidden = True
            batch.wait_s, batch.start_s = 0.0, None
        by_reader = self.reader.is_there and not self._drains
        samples, tokens = (0, 0) if by_reader else (batch.samples, batch.tokens)
        self._clock.add_samples(samples, batch.wait_s, tokens, batch.start_s)
        self._on_counted(source, batch.newest)
