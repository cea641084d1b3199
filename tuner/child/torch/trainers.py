"""Trainers that wrap PyTorch: a knob that such a trainer has an option for is left to the trainer, never done twice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, MutableMapping
from types import ModuleType
from typing import Any

from ..patches import patch
from ..session import Session
from .added_up import ITEMS, PartsLook
from .batch_losses import BatchesLook
from .dealt_batches import DealingLook
from .types import Result, Trainer

Options = MutableMapping[str, object]
"""Of a trainer: those that the script gave, or all of them."""
LIGHTNING_PRECISION = {"bf16": "bf16-mixed", "fp16": "16-mixed", "fp32": "32-true"}
TRAINING_ARGUMENTS = {
    "batch_size": "per_device_train_batch_size",
    "num_workers": "dataloader_num_workers",
    "prefetch_factor": "dataloader_prefetch_factor",
    "pin_memory": "dataloader_pin_memory",
    "persistent_workers": "dataloader_persistent_workers",
}
ACCELERATE_PRECISION = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}


def lightning(session: Session, module: ModuleType) -> None:
    """Lightning's Trainer: precision.

    Not its ``accumulate_grad_batches``: callbacks, limits and schedules of the script count batches, of which it makes
    more.
    """

    _set_precision(session, module.Trainer, "lightning")
    if session.measuring:
        patch(module.Trainer, "fit", _taking_metrics(session))


def _taking_metrics(session: Session) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """What Lightning's ``self.log`` gathered is read when ``fit`` ends, or where the trial ends in it."""
    fitting: list[Trainer] = []

    def take() -> None:
        for trainer in fitting:
            for name, value in dict(trainer.callback_metrics).items():
                session.log(str(name), value)

    def make(original: Callable[..., Result]) -> Callable[..., Result]:
        def fit(trainer: Trainer, *args: object, **kwargs: object) -> Result:
            fitting.append(trainer)
            try:
                result = original(trainer, *args, **kwargs)
                take()
                return result
            finally:
                fitting.remove(trainer)

        return fit

    session.observers.append(take)
    return make


def transformers_log(session: Session, module: ModuleType) -> None:
    """The Trainer's ``log`` gets its training and evaluation figures alike; ``training_step`` its batches and parts."""
    if not session.measuring:
        return
    if hasattr(module.Trainer, "training_step"):
        patch(module.Trainer, "training_step", _looked_at(session, module.Trainer))

    def make(original: Callable[..., Result]) -> Callable[..., Result]:
        def log(trainer: object, logs: Mapping[str, object], *args: object, **kwargs: object) -> Result:
            for name, value in logs.items():
                session.log(str(name), value)
            return original(trainer, logs, *args, **kwargs)

        return log

    patch(module.Trainer, "log", make)


def _looked_at(session: Session, base: Any) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    parts, batches, dealing = PartsLook(session, base), BatchesLook(session, base), DealingLook(session, base)

    def make(original: Callable[..., Result]) -> Callable[..., Result]:
        def training_step(trainer: object, *args: object, **kwargs: object) -> Result:
            dealing.before(trainer)
            batches.before(trainer)
            result = original(trainer, *args, **kwargs)
            parts.after(trainer, args[2] if len(args) > 2 else kwargs.get(ITEMS))
            return result

        return training_step

    return make


def transformers(session: Session, module: ModuleType) -> None:
    """TrainingArguments: batch size, accumulation, precision, workers; nothing is reported to trackers."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def __post_init__(arguments: object) -> None:
            session.facts.trainer = "transformers"
            options = vars(arguments)
            if options.get("dataloader_drop_last"):
                reason = "with dataloader_drop_last other samples would be dropped from smaller batches"
                session.knobs.keep_script_value("grad_accumulation", reason)
            _loader_options(session, options)
            if session.measuring:
                options["report_to"] = "none"
                session.note("TrainingArguments.report_to is none")
            if options.get("bf16") or options.get("fp16"):
                session.knobs.keep_script_value("precision", "TrainingArguments set a mixed precision already")
            elif session.knobs.wants("precision"):
                precision = session.request.config["precision"]
                if precision in ("bf16", "fp16"):
                    options[precision] = True
                    if session.device.kind == "cpu" and "use_cpu" in options:
                        options["use_cpu"] = True  # without it, mixed precision is refused where there is no GPU
                    session.knobs.delegate("precision")
            _accumulate(session, options)
            original(arguments)

        return __post_init__

    patch(module.TrainingArguments, "__post_init__", make)


def _loader_options(session: Session, options: Options) -> None:
    for knob, field in TRAINING_ARGUMENTS.items():
        if options.get(field) is not None:
            session.knobs.trainer_options[knob] = options[field]
        # TrainingArguments refuse a prefetch without workers; their number comes before it.
        in_vain = knob == "prefetch_factor" and not options["dataloader_num_workers"]
        if session.knobs.wants(knob) and field in options and not in_vain:
            options[field] = session.request.config[knob]
            session.knobs.delegate(knob)


def fabric(session: Session, module: ModuleType) -> None:
    """Lightning's Fabric: precision; everything else stays with the script's own loop."""
    _set_precision(session, module.Fabric, "fabric")


def _set_precision(session: Session, trainer: type, name: str) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(made: object, *args: object, **kwargs: object) -> None:
            session.facts.trainer = name
            _choose(session, "precision", kwargs, "precision", LIGHTNING_PRECISION, written=kwargs.get("precision"))
            original(made, *args, **kwargs)

        return __init__

    patch(trainer, "__init__", make)


def accelerate(session: Session, module: ModuleType) -> None:
    """accelerate's Accelerator: mixed precision."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        def __init__(accelerator: object, *args: object, **kwargs: object) -> None:
            if not session.facts.trainer:
                session.facts.trainer = "accelerate"
                given = signature.bind_partial(accelerator, *args, **kwargs).arguments
                written = given.get("mixed_precision")
                _choose(session, "precision", kwargs, "mixed_precision", ACCELERATE_PRECISION, written=written)
            original(accelerator, *args, **kwargs)

        return __init__

    patch(module.Accelerator, "__init__", make)


def _choose(
    session: Session, knob: str, options: Options, option: str, names: dict[str, str], *, written: object = None
) -> None:
    """Sets the trainer's option for the knob, unless the script chose a value of its own."""
    if written not in (None, "no", "32", "32-true", 32):
        session.knobs.keep_script_value(knob, f"the script passes {option}={written!r} to its trainer")
        return
    word = names.get(str(session.request.config.get(knob)))
    if session.knobs.wants(knob) and word is not None:
        options[option] = word
        session.knobs.delegate(knob)


def _accumulate(session: Session, options: Options) -> None:
    """By the trainer's own option: its models compute their loss themselves, of the samples that they are given."""
    session.knobs.trainer_options["grad_accumulation"] = options.get("gradient_accumulation_steps") or 1
    if session.knobs.wants("grad_accumulation"):
        options["gradient_accumulation_steps"] = session.request.config["grad_accumulation"]
        session.knobs.delegate("grad_accumulation")


TRAINERS: Mapping[str, Callable[[Session, ModuleType], None]] = {
    "lightning.pytorch.trainer.trainer": lightning,
    "pytorch_lightning.trainer.trainer": lightning,
    "lightning.fabric.fabric": fabric,
    "lightning_fabric.fabric": fabric,
    "transformers.training_args": transformers,
    "transformers.trainer": transformers_log,
    "accelerate.accelerator": accelerate,
}
