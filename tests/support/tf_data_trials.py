"""Trials on tf.data, for the checks of test_tf_data.py, the first of which imports this: TensorFlow takes seconds."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import tensorflow as tf

from support.in_process import Log, session_of
from tuner.child import shape
from tuner.child.patches import unpatch_all
from tuner.child.tensorflow.data.watch import DatasetWatch


class Trial:
    """One trial's watch on tf.data, put in place of the one before."""

    def __init__(self, knowledge: dict[str, Any] | None = None, **config: Any) -> None:
        unpatch_all()
        self.log = Log()
        request = {"config": config, "knowledge": knowledge or {}, "window": {"block_s": 1.0}}
        self.session = session_of(request, self.log)
        self.session.clock.total_steps = 1  # without a step nothing counts as contradicted
        self.watch = DatasetWatch(self.session, tf)
        self.watch.install()

    def train(self, dataset: Any, *, batched: bool = True, batches: int = 3, epochs: int = 1) -> list[Any]:
        """What an adapter does with a dataset that trains; the last epoch's batches."""
        self.watch.meet(dataset, batched=batched)
        adapted = self.watch.adapt(dataset, batched=batched)
        seen: list[Any] = []
        for _ in range(epochs):
            seen = []
            iterator = iter(adapted)
            self.watch.fed_by(iterator)
            for batch in iterator:
                self.watch.saw_batch(int(tf.nest.flatten(batch)[0].shape[0]))
                seen.append(batch)
                if batches and len(seen) == batches:
                    break
        return seen

    def knowledge(self) -> dict[str, Any]:
        """What later trials know of this one, the baseline; through JSON, as in a study."""
        self.watch.observe()
        facts = dataclasses.replace(self.session.facts.record(self.session.clock, {}), steps=1)
        return json.loads(json.dumps(shape.plain(facts)))  # type: ignore[no-any-return]

    def evidence(self, knob: str) -> tuple[str, str]:
        """What was found of a knob, and why."""
        self.watch.observe()
        record = next(r for r in self.log.records if r["kind"] == "knob" and r["knob"] == knob)
        return record["evidence"], record["reason"]

    def is_of_value(self, knob: str) -> bool | None:
        """Whether what doesn't apply is the value; behind ``evidence``."""
        return next(r["of_value"] for r in self.log.records if r["kind"] == "knob" and r["knob"] == knob)  # type: ignore[no-any-return]


def after(make: Callable[[], Any], *, batches: int = 3, epochs: int = 1, **config: Any) -> Trial:
    """A trial of the config behind a baseline, both on a dataset made anew."""
    baseline = Trial()
    baseline.train(make(), batches=batches)
    trial = Trial(baseline.knowledge(), **config)
    trial.train(make(), batches=batches, epochs=epochs)
    return trial


def sizes(dataset: Any) -> list[int]:
    """Leading dimensions of all batches."""
    return [int(tf.nest.flatten(batch)[0].shape[0]) for batch in dataset]


def values(dataset: Any) -> list[int]:
    """All numbers in order."""
    return [int(x) for batch in dataset for x in np.ravel(tf.nest.flatten(batch)[0])]


def numbers(count: int = 100) -> Any:
    """A dataset of numbers."""
    return tf.data.Dataset.range(count)
