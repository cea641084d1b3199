"""Gives each config of a rotation that turns knobs of tf.data a pipeline of its own, which lives in its turns only.

Where one has, all have, the script as written included: a pipeline of the script's dataset with the config's values,
endless and begun anew with each turn. Nothing is made in others' turns, and each turn goes through the same data. The
script's own iterator isn't asked meanwhile: its shuffles, random numbers and place stay what they are.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from ..evidence import Finding
from ..records import Evidence, Value
from ..tensorflow.data import own, plans
from ..tensorflow.data.plans import Plan
from ..tensorflow.data.refused import Refused, reason_of
from ..tensorflow.data.watch import AS_WRITTEN, DatasetWatch
from ..tensorflow.types import Dataset, DatasetIterator, Structure
from .by_turns import StepsByTurns
from .watches import Watches

KNOBS = ("parallel_calls", "vectorized_map", "prefetch", "deterministic", "private_threads")
CHANGED = "another dataset trains by now"
RESTLESS = "the script's own pipeline goes on filling its queue"
PREPARED_BATCHES = 2
"""So many are fetched in the preparation: behind the first one the whole plan is there."""
LOOKS, LOOK_S, MOST_REST_S = 3, 0.02, 5.0
"""A process is at rest that was so for so many looks in a row, each over so many seconds; how long that may take."""
CALM = 0.25
"""Of a core: what a process at rest uses at most."""
Config = Mapping[str, Value]
Key = tuple[tuple[str, Value], ...]


@dataclass
class _Own:
    """The dataset of a config's pipelines. ``doubt``: what of the config its plan doesn't show."""

    dataset: Dataset
    doubt: str = ""


class OwnPipelines:
    """The pipelines of a rotation's configs. At most one is alive at any time."""

    def __init__(self, watches: Watches) -> None:
        self._watches = watches
        self._own: dict[Key, _Own] = {}
        self._refusals: dict[Key, str] = {}
        self._dataset: Callable[[], object] = lambda: None
        """The script's own that the pipelines are of."""
        self._plan: Plan | None = None
        """Of the script as written."""
        self._feeds = False
        self._obstacle = ""
        """Why no config has its own after all, though none of them was refused."""

    # what can be had

    def refusal(self, config: Config) -> str:
        """Why the config can't have a pipeline of its own, continuing a sentence; "" where it can, or needs none."""
        wanted = self._part(config)
        key = tuple(sorted(wanted.items()))
        if key not in self._refusals:
            self._refusals[key] = self._refused(wanted) if wanted else ""
        return self._refusals[key]

    def _refused(self, wanted: Config) -> str:
        fits, datasets = self._watches.fits, self._watches.datasets
        if fits is None or fits.call is None or datasets is None or fits.call.fed_by != "dataset":
            return "no dataset of tf.data is seen to feed Model.fit"
        dataset = self._feeding
        if dataset is None or dataset is not fits.call.dataset():
            return "Keras makes another dataset of the script's, as it does for class_weight"
        if fits.steps.queues.is_unseen:
            return "TensorFlow doesn't tell what lies ready in its pipeline"
        left_out = datasets.session.facts.left_out
        why = next((left_out[knob] for knob in wanted if knob in left_out), "")
        why = why or own.obstacle(datasets.book.read(dataset))
        if why:
            return why
        try:
            _, applied = datasets.turned(dataset, wanted)
        except Exception as error:  # the script's own functions are traced anew, and may raise anything
            return reason_of(error)
        refused = next((each.refused for each in applied.values() if each.refused), "")
        return refused or (AS_WRITTEN if not all(each.changed for each in applied.values()) else "")

    # turns

    def begin(self, configs: Sequence[Config]) -> None:
        """Before the first turn of all: whether these have pipelines of their own, and the plan of those as written."""
        if not any(self._part(config) for config in configs):
            return
        self._dataset, self._feeds = _reference(self._feeding), True
        # What the script's own has begun to make it goes on making, though nobody asks for it.
        self._obstacle = "" if is_at_rest() else RESTLESS
        if self._obstacle:
            return
        try:
            self._own[()], self._plan = self._made({})
        except Exception as error:  # the script's own functions are traced anew, and may raise anything
            self._obstacle = reason_of(error)

    def hold(self) -> None:
        """The turn is over: what made its batches ends."""
        if self._by_turns is not None:
            self._by_turns.own = None

    def to(self, config: Config) -> None:
        """The config has its turn, after ``hold``: its pipeline begins, and makes a first batch that nobody trains on.

        Raises ``RuntimeError`` where it can't have one any more, and whatever its making raises.
        """
        by_turns, fits = self._by_turns, self._watches.fits
        if not self._feeds or by_turns is None or fits is None:
            return
        wanted = self._part(config)
        why = self._obstacle or (CHANGED if self._has_changed else "")
        if why and wanted:
            raise RuntimeError(why)
        if why:
            return  # from the script's own, as all others do then
        key = tuple(sorted(wanted.items()))
        if key not in self._own:
            self._own[key], _ = self._made(wanted)
        iterator = self._begun(self._own[key].dataset)
        next(iterator)
        by_turns.own = iterator
        fits.steps.queues.fetches_from(iterator)

    def doubt(self, config: Config) -> str:
        """What of the config isn't as it has to be, or ""."""
        wanted = self._part(config)
        if not wanted:
            return ""
        if self._by_turns is None or self._by_turns.own is None:
            return CHANGED
        return self._own[tuple(sorted(wanted.items()))].doubt

    def end(self) -> None:
        """There are no more turns."""
        self.hold()
        self._own.clear()
        self._feeds = False

    # making

    def _made(self, wanted: Config) -> tuple[_Own, Plan | None]:
        """The dataset of these knobs, and the plan by which TensorFlow makes its batches; None where it tells none."""
        datasets, dataset = self._watches.datasets, self._feeding
        assert datasets is not None and dataset is not None
        node, _ = datasets.turned(dataset, wanted)
        made = own.apart(node).build()
        if made.element_spec != dataset.element_spec:
            raise Refused("its batches would have another shape, for which the step would be traced anew")
        iterator = self._begun(made)
        batches = [next(iterator) for _ in range(PREPARED_BATCHES)]
        self._check_rows(batches)
        plan = _plan_of(datasets, iterator)
        return _Own(made, self._judged(wanted, made, plan)), plan

    def _begun(self, dataset: Dataset) -> Any:
        """An iterator that ends with its last reference: no thread of it runs on in others' turns."""
        ends = self._watches.ends
        with nullcontext() if ends is None else ends.in_place():
            return iter(dataset)

    def _check_rows(self, batches: Sequence[Structure]) -> None:
        """Raises ``Refused`` where these hold more samples than any of the script's, as where one is all its data."""
        by_turns, fits = self._by_turns, self._watches.fits
        assert by_turns is not None and fits is not None
        rows, largest = max(map(by_turns.rows_of, batches)), fits.steps.largest_batch
        if 0 < largest < rows:
            raise Refused(f"its batches would have {rows} samples, and the script's have {largest} at most")

    def _judged(self, wanted: Config, made: Dataset, plan: Plan | None) -> str:
        for knob, value in wanted.items():
            if knob == "deterministic":
                found = plans.judge_order(made, value, plan)
            elif plan is None:
                found = Finding(Evidence.UNVERIFIABLE)
            else:
                found = plans.judge(knob, value, plan, self._plan)
            if found.evidence in (Evidence.NOT_APPLICABLE, Evidence.CONTRADICTED):
                return found.reason
        return ""

    def _part(self, config: Config) -> dict[str, Value]:
        """The knobs of the pipeline in a config."""
        return {knob: value for knob, value in config.items() if knob in KNOBS}

    @property
    def _has_changed(self) -> bool:
        return self._feeding is None or self._feeding is not self._dataset()

    @property
    def _feeding(self) -> Dataset | None:
        """What the script's own iterator goes through."""
        return self._by_turns.feeding() if self._by_turns is not None else None

    @property
    def _by_turns(self) -> StepsByTurns | None:
        return self._watches.fits.steps.by_turns if self._watches.fits is not None else None


def _plan_of(datasets: DatasetWatch, iterator: DatasetIterator) -> Plan | None:
    try:
        plan = plans.read(datasets.tf, iterator)
    except Exception:  # TensorFlow tells none
        return None
    return plan if plans.is_whole(plan) else None


def is_at_rest() -> bool:
    """Waits until this process does nothing any more but wait for us; whether it came to that in time."""
    calm, ends = 0, time.monotonic() + MOST_REST_S
    while calm < LOOKS and time.monotonic() < ends:
        began, used_s = time.perf_counter(), time.process_time()
        time.sleep(LOOK_S)
        used_s = time.process_time() - used_s
        calm = calm + 1 if used_s <= CALM * (time.perf_counter() - began) else 0
    return calm >= LOOKS


def _reference(dataset: Dataset | None) -> Callable[[], object]:
    return weakref.ref(dataset) if dataset is not None else lambda: None
