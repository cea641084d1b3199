"""By whom Keras' steps are waited for, and whose memory is told, on JAX and on PyTorch; on stand-ins for both."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest
from support.in_process import Log, session_of

from tuner.child.devices.base import Device
from tuner.child.keras.adapter import KerasAdapter
from tuner.child.keras.counters import BatchCounters
from tuner.child.keras.evidence import Observation
from tuner.child.keras.fit_call import Nesting
from tuner.child.keras.queues import FitQueues
from tuner.child.keras.steps import StepWatch
from tuner.child.keras.trajectory import TrajectoryWatch
from tuner.child.records import Memory


class Card(Device):
    """Notes what it is asked for, and by which library."""

    kind = "cuda"
    torch_type = "cuda"

    def __init__(self, missing: str = "") -> None:
        super().__init__("cuda:0")
        self.asked: list[tuple[str, str]] = []
        self.missing = missing

    def torch_synchronize(self, torch: Any) -> None:
        self.asked.append(("wait", torch.__name__))

    def torch_missing(self, torch: Any) -> str:
        return self.missing

    def jax_missing(self, jax: Any, platforms: Collection[str] = ()) -> str:
        return self.missing

    def torch_memory(self, torch: Any, used_by_others: int) -> Memory:
        self.asked.append(("memory", torch.__name__))
        return Memory(3, 2, overhead=used_by_others)

    def jax_memory(self, jax: Any) -> Memory:
        self.asked.append(("memory", jax.__name__))
        return Memory(5, 4, pool=6)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Stands in for JAX and PyTorch; gives what JAX was told to wait for."""
    waited: list[object] = []
    jax = SimpleNamespace(__name__="jax", block_until_ready=waited.append)
    monkeypatch.setitem(sys.modules, "jax", cast(Any, jax))
    monkeypatch.setitem(sys.modules, "torch", cast(Any, SimpleNamespace(__name__="torch")))
    return waited


def _session(card: Card, log: Log) -> Any:
    session = session_of({"device": "cpu", "used_device_bytes": 7}, log)
    session.device = card
    return session


@pytest.mark.parametrize(("backend", "jax_waits", "card_waits"), [("jax", 1, 0), ("torch", 0, 1)])
def test_the_newest_step_is_waited_for_by_the_backend_that_takes_it(
    libraries: list[object], backend: str, jax_waits: int, card_waits: int
) -> None:
    """Both give a step's results before they are computed: without a wait, launches would be timed."""
    card = Card()
    session = _session(card, Log())
    steps = StepWatch(session, Nesting(), backend, TrajectoryWatch(session))
    steps.logs = cast(Any, {"loss": object()})
    steps.synchronize()
    assert libraries == [steps.logs] * jax_waits
    assert card.asked == [("wait", "torch")] * card_waits


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_steps_that_may_not_be_done_yet_are_known_by_the_backend(libraries: list[object], backend: str) -> None:
    """A run that ends within its window told of steps that JAX was still to compute: nobody knows when the last ended.

    On the host PyTorch is done with a step when its call is.
    """
    session = _session(Card(), Log())
    steps = StepWatch(session, Nesting(), backend, TrajectoryWatch(session))
    steps.prepare(cast(Any, SimpleNamespace(optimizer=None)), cast(Any, None), None)
    assert session.clock.asynchronous is (backend == "jax")


class Computing:
    """An array that isn't there yet, until it is."""

    def __init__(self) -> None:
        self.there = threading.Event()

    def is_ready(self) -> bool:
        return self.there.is_set()


def test_what_is_made_while_a_step_computes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On JAX data that took less than a step seemed to hold the loop up for most of it."""
    jax = SimpleNamespace(block_until_ready=lambda arrays: [each.there.wait(60) for each in arrays])
    monkeypatch.setitem(sys.modules, "jax", cast(Any, jax))
    session, newest = _session(Card(), Log()), Computing()
    waits: list[float] = []
    session.clock.add_samples = lambda samples, wait_s: waits.append(wait_s)
    counters = BatchCounters(session)
    counters.runs_ahead(lambda: [newest])

    def made() -> Iterator[Any]:
        for done in (False, True):
            time.sleep(0.05)
            if done:
                newest.there.set()
            yield numpy.ones((4, 1))

    for _ in counters._counted(made(), 0.0):
        pass
    newest.there.set()
    for _ in counters._counted(made(), 0.0):
        pass
    assert waits[0] == 0.0 and waits[1] < 0.05 <= min(waits[2:])


class SlowToBegin:
    """Batches whose iteration takes long to begin, as where a loader starts its workers."""

    def __iter__(self) -> Iterator[Any]:
        time.sleep(0.3)
        return iter([numpy.ones((4, 1))] * 2)


def test_what_an_iteration_takes_to_begin_is_waited_for() -> None:
    """It was in the time of a step, and in no wait: a loop that starts workers in each epoch seemed to compute."""
    session = _session(Card(), Log())
    waits: list[float] = []
    session.clock.add_samples = lambda samples, wait_s: waits.append(wait_s)
    counters = BatchCounters(session)
    counters.counting = True
    given = counters._get_iterator(lambda iterator: SlowToBegin())(object())
    assert [len(cast(Any, batch)) for batch in given] == [4, 4]
    assert waits[0] >= 0.3 > waits[1]


def test_a_queue_of_another_version_is_not_looked_into() -> None:
    """Keras' own names may change: a script must not end for them."""
    queues = FitQueues(None)
    queues.pydataset = dataset = object()
    enqueuer = cast(Any, type("Enqueuer", (), {"py_dataset": dataset})())
    queues._enqueuer = lambda: enqueuer
    assert (queues.samples(8), queues.capacity(8)) == (None, 0)


@pytest.mark.parametrize(
    ("samples", "unit", "stock", "steps"),
    [
        pytest.param(3200, "samples", 16 * 32, 48, id="a step a batch"),
        pytest.param(800, "samples", 16 * 32, 4 * 48, id="four steps a batch"),
        pytest.param(12_800, "samples", 16 * 32, 12, id="four batches a step"),
        pytest.param(0, "steps", 16, 48, id="steps alone are counted"),
    ],
)
def test_a_stock_that_cannot_be_seen_is_told_in_what_is_counted(
    samples: int, unit: str, stock: int, steps: int
) -> None:
    """And a window is three times as long as such a stock, whatever a step takes of it."""
    session = _session(Card(), Log())
    queues = SimpleNamespace(is_unseen=True, capacity=lambda size: 0, begins_as_taken=True)
    fit = SimpleNamespace(queues=queues, largest_batch=32)
    adapter = KerasAdapter(session)
    adapter._reads_loss = False
    adapter.watches.datasets = cast(Any, SimpleNamespace(prefetched=16))
    adapter.watches.fits = cast(Any, SimpleNamespace(call=SimpleNamespace(fed_by="dataset"), steps=fit))
    session.clock.total_steps, session.clock.total_samples = 100, float(samples)
    session.facts.unit = unit
    adapter.on_block()
    adapter._remark_what_is_unseen()
    assert (session.facts.unseen_samples, session.clock.min_window_steps) == (stock, steps)


@pytest.mark.parametrize(
    ("backend", "memory"),
    [("jax", {"reserved": 5, "allocated": 4, "pool": 6}), ("torch", {"reserved": 3, "allocated": 2, "overhead": 7})],
)
def test_memory_is_told_by_the_backend_that_computes(
    libraries: list[object], backend: str, memory: dict[str, int]
) -> None:
    card, log = Card(), Log()
    session = _session(card, log)
    Observation(session, cast(Any, SimpleNamespace(backend=backend, fits=None)))._device()
    assert card.asked == [("memory", backend)]
    [told] = log.of("memory")
    assert memory.items() <= told.items()


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_steps_on_another_device_have_no_memory_to_tell(libraries: list[object], backend: str) -> None:
    card, log = Card(missing="no GPU here"), Log()
    session = _session(card, log)
    Observation(session, cast(Any, SimpleNamespace(backend=backend, fits=None)))._device()
    assert log.of("memory") == [] and card.asked == []
    [failure] = log.of("failure")
    assert failure["reason"] == "unsupported" and "no GPU here" in failure["detail"]
