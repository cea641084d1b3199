"""Trainers' own options, on stand-ins for the libraries' classes, which aren't installed with the tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tuner.child import trainers
from tuner.child.patches import unpatch_all
from tuner.child.recorder import Recorder
from tuner.child.session import Session


def _trainer_session(**config: Any) -> Session:
    return Session({"config": config, "device": "cpu", "folder": "trial"}, Recorder(None))


class _Trainer:
    def __init__(
        self, precision: str | None = None, mixed_precision: str | None = None, default_root_dir: str = ""
    ) -> None:
        self.chosen = precision or mixed_precision


def test_training_arguments_take_the_knobs_that_they_have() -> None:
    written = {
        "per_device_train_batch_size": 8, "dataloader_num_workers": 0, "dataloader_prefetch_factor": None,
        "dataloader_pin_memory": True, "dataloader_persistent_workers": False, "bf16": False, "fp16": False,
        "use_cpu": False, "gradient_accumulation_steps": 2, "output_dir": "out",
    }  # fmt: skip

    class TrainingArguments:
        def __init__(self) -> None:
            vars(self).update(written)
            self.__post_init__()

        def __post_init__(self) -> None:
            self.checked = dict(vars(self))

    config = {"batch_size": 4, "num_workers": 1, "prefetch_factor": 4, "precision": "bf16", "grad_accumulation": 4}
    session = _trainer_session(**config)
    trainers.transformers(session, SimpleNamespace(TrainingArguments=TrainingArguments))  # type: ignore[arg-type]
    checked = TrainingArguments().checked
    unpatch_all()
    expected = {
        "per_device_train_batch_size": 4, "dataloader_num_workers": 1, "dataloader_prefetch_factor": 4,
        "bf16": True, "use_cpu": True, "gradient_accumulation_steps": 4,
    }  # fmt: skip
    assert {name: checked[name] for name in expected} == expected
    assert session.bound_elsewhere >= set(config), "no patch may do it a second time"
    assert session.trainer_options["grad_accumulation"] == 2


@pytest.mark.parametrize(
    ("adapter", "name", "option", "value"),
    [
        (trainers.lightning, "Trainer", "precision", "bf16-mixed"),
        (trainers.fabric, "Fabric", "precision", "bf16-mixed"),
        (trainers.accelerate, "Accelerator", "mixed_precision", "bf16"),
    ],
)  # fmt: skip
def test_a_trainers_own_precision_is_used(adapter: Any, name: str, option: str, value: str) -> None:
    for given in ({}, {option: "fp16"}):
        session = _trainer_session(precision="bf16")
        trainer = type(name, (_Trainer,), {"__init__": _Trainer.__init__})
        adapter(session, SimpleNamespace(**{name: trainer}))
        chosen = trainer(**given).chosen
        unpatch_all()
        assert chosen == given.get(option, value), "what the script chose itself stays"
        assert ("precision" in session.refused) == bool(given)
        assert not session.wants("precision"), "no patch may do it a second time"
