"""Trainers' own options, on stand-ins for the libraries' classes, which aren't installed with the tests."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.in_process import Log, session_of

from tuner.child.patches import unpatch_all
from tuner.child.recorder import Recorder
from tuner.child.session import Session
from tuner.child.torch import trackers, trainers


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial's folder is named relatively, and what is written there is made where the tests run."""
    monkeypatch.chdir(tmp_path)


def _trainer_session(**config: Any) -> Session:
    return session_of({"config": config, "device": "cpu", "folder": "trial"}, Recorder(None))


class _Trainer:
    def __init__(
        self, precision: str | None = None, mixed_precision: str | None = None, default_root_dir: str = ""
    ) -> None:
        self.chosen = precision or mixed_precision

    def fit(self) -> None:
        """Trains nothing."""


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
    assert not any(session.knobs.wants(knob) for knob in config), "no patch may do it a second time"
    assert session.knobs.trainer_options["grad_accumulation"] == 2


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
        assert ("precision" in session.knobs.kept_by_script) == bool(given)
        assert not session.knobs.wants("precision"), "no patch may do it a second time"


class _Metrics(Log):
    @property
    def metrics(self) -> dict[str, float]:
        return {record["name"]: record["value"] for record in self.of("metric")}


def _recorded() -> tuple[Session, _Metrics]:
    log = _Metrics()
    return session_of({"device": "cpu", "folder": "trial"}, log), log


def test_a_writers_scalars_are_metrics_and_the_scripts_own_report_stands() -> None:
    written: list[Any] = []

    class SummaryWriter:
        def __init__(self, log_dir: str = "") -> None:
            written.append(log_dir)

        def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None:
            written.append((tag, scalar_value, global_step))

        def add_scalars(self, main_tag: str, tag_scalar_dict: dict[str, float], global_step: int | None = None) -> None:
            written.append((main_tag, tag_scalar_dict, global_step))

    session, log = _recorded()
    trackers.install_summary_writer(session, SimpleNamespace(SummaryWriter=SummaryWriter))  # type: ignore[arg-type]
    writer = SummaryWriter("mine")
    for step, accuracy in enumerate((0.5, 0.75)):
        writer.add_scalar("Accuracy/val", accuracy, step)
    writer.add_scalar(tag="f1", scalar_value=0.25, global_step=3)
    writer.add_scalars("Loss", {"train": 1.0, "val": 2.0}, 4)
    writer.add_scalar("a blob", "its name")
    session.report({"f1": 0.5})
    writer.add_scalar("f1", 0.125)
    session.finish(complete=True)
    unpatch_all()
    assert log.metrics == {"Accuracy/val": 0.75, "f1": 0.5, "Loss/train": 1.0, "Loss/val": 2.0}
    assert ("Accuracy/val", 0.75, 1) in written and ("Loss", {"train": 1.0, "val": 2.0}, 4) in written
    assert len(written) == 7


@pytest.mark.parametrize("ended", [True, False], ids=["after fit", "in fit"])
def test_what_lightning_gathered_is_taken(ended: bool) -> None:
    session, log = _recorded()

    class Trainer:
        def __init__(self, default_root_dir: str = "") -> None:
            self.callback_metrics: dict[str, float] = {}

        def fit(self) -> str:
            self.callback_metrics["val_acc"] = 0.5
            if not ended:
                session.finish(complete=True)
            self.callback_metrics["val_acc"] = 0.75
            return "as it was"

    trainers.lightning(session, SimpleNamespace(Trainer=Trainer))  # type: ignore[arg-type]
    assert Trainer().fit() == "as it was"
    session.finish(complete=True)
    unpatch_all()
    assert log.metrics == {"val_acc": 0.75 if ended else 0.5}


def test_what_transformers_logs_is_taken() -> None:
    class Trainer:
        def log(self, logs: dict[str, float], start_time: float | None = None) -> dict[str, float]:
            return logs

    session, log = _recorded()
    trainers.transformers_log(session, SimpleNamespace(Trainer=Trainer))  # type: ignore[arg-type]
    assert Trainer().log({"eval_accuracy": 0.5, "epoch": 1}, start_time=1.0) == {"eval_accuracy": 0.5, "epoch": 1}
    session.finish(complete=True)
    unpatch_all()
    assert log.metrics == {"eval_accuracy": 0.5, "epoch": 1.0}


class CrossEntropyLoss:
    """Of PyTorch's name."""


functional = SimpleNamespace(cross_entropy=lambda logits, labels: logits)


def _forward(self: object, labels: object = None, **kwargs: object) -> object:
    return CrossEntropyLoss()


def _forward_that_divides(self: object, labels: object = None, **kwargs: object) -> object:
    return self.loss_function(labels, **kwargs)  # type: ignore[attr-defined]  # as models of the library have it


def _forward_that_tells_no_loss(self: object, labels: object = None, **kwargs: object) -> object:
    hidden = self.encoder(**kwargs)  # type: ignore[attr-defined]  # as Llama's classifier has it
    return self.loss_function(hidden, labels)  # type: ignore[attr-defined]


def _forward_by_function(self: object, labels: object = None, **kwargs: object) -> object:
    return functional.cross_entropy(self, labels)


def _forward_that_wraps(self: object, **inputs: object) -> object:
    return self.model(**inputs)  # type: ignore[attr-defined]


def _own_loss(self: object, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
    return model(**inputs)


def _own_loss_that_divides(self: object, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
    return model(**inputs) / num_items_in_batch


def _telling(self: Any, model: Any, inputs: Any, return_outputs: bool = False, **told: Any) -> Any:
    return super(type(self), self).compute_loss(model, inputs, return_outputs, **told)


def _telling_nothing(self: Any, model: Any, inputs: Any, return_outputs: bool = False, **told: Any) -> Any:
    return super(type(self), self).compute_loss(model, inputs, return_outputs)


def _by_function(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return outputs.mean()


def _by_function_that_divides(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return outputs.sum() / num_items_in_batch


class ByObject:
    """A loss function that is no function."""

    def __call__(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return outputs.mean()


class ByModule:
    """One that is a module, whose ``__call__`` passes on what it is given."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def forward(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return outputs.mean()


def _giving_none(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
    return super(type(self), self).compute_loss(model, inputs, num_items_in_batch=None)


def _decorated(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class Smoother:
    """As earlier versions have it."""

    def __call__(self, outputs: Any, labels: Any) -> Any:
        return outputs.mean()


class SmootherThatDivides:
    """As later ones."""

    def __call__(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return outputs.sum() / num_items_in_batch


def _of_items(logits: Any, labels: Any, num_items_in_batch: Any = None, **kwargs: Any) -> Any:
    return functional.cross_entropy(logits, labels) / num_items_in_batch


def _of_classes(logits: Any, labels: Any, **kwargs: Any) -> Any:
    return _of_items(logits, labels, **kwargs) if labels else CrossEntropyLoss()


_of_classes.__name__ = "ForSequenceClassificationLoss"


def _of_sequences(logits: Any, labels: Any, **kwargs: Any) -> Any:
    return functional.cross_entropy(logits, labels)


_PARTIAL = functools.partial(_by_function)


@pytest.mark.parametrize(
    ("forward", "of_trainer", "items", "keeps"),
    [
        (_forward, {}, 16, "Classifier"),
        (_forward_that_divides, {}, 16, ""),
        (_forward_that_tells_no_loss, {}, 16, "Classifier"),
        (_forward_by_function, {}, 16, "Classifier"),
        (_forward_that_wraps, {}, 16, ""),
        (_forward_that_divides, {"compute_loss": _own_loss}, 16, "Own.compute_loss"),
        (_forward_that_divides, {"compute_loss": _telling_nothing}, 16, "Own.compute_loss"),
        (_forward_that_divides, {"compute_loss": _giving_none}, 16, "Own.compute_loss"),
        (_forward_that_divides, {"compute_loss": _telling}, 16, ""),
        (_forward, {"compute_loss": _telling}, 16, "Classifier"),
        (_forward, {"compute_loss": _own_loss_that_divides}, 16, ""),
        (_forward_that_divides, {"compute_loss_func": staticmethod(_by_function)}, 16, "_by_function"),
        (_forward, {"compute_loss_func": staticmethod(_by_function_that_divides)}, 16, ""),
        (_forward_that_divides, {"compute_loss_func": staticmethod(_PARTIAL)}, 16, "_by_function"),
        (_forward_that_divides, {"compute_loss_func": ByObject()}, 16, "ByObject"),
        (_forward_that_divides, {"compute_loss_func": ByModule()}, 16, "ByModule"),
        (_forward_that_divides, {"compute_loss": _decorated(_own_loss)}, 16, "Own.compute_loss"),
        (_forward_that_divides, {"compute_loss": _decorated(_telling)}, 16, ""),
        (_forward_that_divides, {"label_smoother": Smoother()}, 16, "Smoother"),  # earlier versions' takes a mean
        (_forward, {"label_smoother": SmootherThatDivides()}, 16, ""),
        (_forward, {"loss_is_scaled_for_ga": False}, 16, ""),  # the script says so, and the trainer divides
        (_forward, {"model_accepts_loss_kwargs": False}, 16, ""),  # here it does so by itself
        (_forward, {}, None, ""),
    ],
)
def test_parts_are_kept_where_their_gradients_are_added_up(
    forward: Any, of_trainer: dict[str, Any], items: Any, keeps: str
) -> None:
    """Twice the parts of half the size had twice the gradient, and passed for the same training: the library divides
    by no number of parts where the model is told the items of a step, and most classifiers take a mean all the same.
    """
    model = type("Classifier", (), {"forward": forward, "loss_function": staticmethod(_of_items)})()
    why = _why_parts_are_kept(model, of_trainer, items)
    assert (f"and {keeps} takes the mean" in why) if keeps else not why, why


@pytest.mark.parametrize(
    ("loss", "problem", "is_kept"),
    [
        (_of_items, None, False),
        (_of_classes, "single_label_classification", False),
        (_of_classes, "multi_label_classification", True),
        (_of_classes, "regression", True),
        (_of_sequences, None, True),  # as that of CTC
    ],
)
def test_parts_are_kept_where_the_librarys_loss_takes_a_mean_all_the_same(
    loss: Any, problem: str | None, *, is_kept: bool
) -> None:
    """Some of its losses divide by what they are told for some problems only, and some for none."""
    model = type("Classifier", (), {"forward": _forward_that_divides, "loss_function": staticmethod(loss)})()
    model.config = SimpleNamespace(problem_type=problem)
    assert bool(_why_parts_are_kept(model, {}, 16)) is is_kept


def test_parts_are_kept_by_the_model_that_peft_wraps() -> None:
    """The one around it only passes on what it is given."""
    within = type("Classifier", (), {"forward": _forward})()
    model = type("Wrapping", (), {"forward": _forward_that_wraps, "get_base_model": lambda self: within})()
    assert "and Classifier takes the mean" in _why_parts_are_kept(model, {}, 16)


def _why_parts_are_kept(model: object, of_trainer: dict[str, Any], items: Any) -> str:
    class Trainer:
        model_accepts_loss_kwargs, compute_loss_func, label_smoother = True, None, None

        def __init__(self) -> None:
            self.model = model

        def log(self, logs: dict[str, float]) -> None:
            """Tells nobody."""

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            return model.forward(**inputs)

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> str:
            return "as it was"

    session = _trainer_session()
    trainers.transformers_log(session, SimpleNamespace(Trainer=Trainer))  # type: ignore[arg-type]
    trainer = type("Own", (Trainer,), of_trainer)()
    assert [trainer.training_step(None, {}, items) for _ in range(2)] == ["as it was"] * 2
    unpatch_all()
    return session.knobs.kept_by_script.get("grad_accumulation", "")
