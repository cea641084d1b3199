"""What Keras models are made with: the number format of their layers, the optimizer's rate and accumulation."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..patches import patch
from ..session import Session

POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
_WRAPPER = "LossScaleOptimizer"  # it has no rate and no gradients of its own


class PolicyWatch:
    """The dtype policy that layers are made with, as long as the script chooses none itself.

    Keras keeps the policy per thread, and ``clear_session`` forgets it: what is asked for it is answered instead.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.chosen_by_script = ""
        self.forced: Any = None
        self.asked = 0
        self.on_first: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Called before any layer is made."""
        policies = sys.modules["keras.src.dtype_policies.dtype_policy"]
        patch(policies, "set_dtype_policy", self._set)
        for owner in (sys.modules.get("keras.config"), sys.modules.get("keras.mixed_precision")):
            for name in ("set_dtype_policy", "set_global_policy"):
                if owner is not None and hasattr(owner, name):
                    patch(owner, name, self._set)
        if self.session.wants("precision") and self.session.config["precision"] in POLICIES:
            self.forced = policies.DTypePolicy(POLICIES[self.session.config["precision"]])
        patch(policies, "dtype_policy", self._get)

    def _set(self, original: Any) -> Any:
        def set_dtype_policy(policy: Any) -> None:
            original(policy)
            name = policy if isinstance(policy, str) else policy.name
            if name != "float32":
                self.chosen_by_script = name

        return set_dtype_policy

    def _get(self, original: Any) -> Any:
        def dtype_policy() -> Any:
            if not self.asked:
                self.on_first()
            self.asked += 1
            own = original()
            return own if self.forced is None or self.chosen_by_script or own.name != "float32" else self.forced

        return dtype_policy


class OptimizerWatch:
    """Accumulation and learning rate, given to every optimizer as it is made."""

    def __init__(self, session: Session, keras: ModuleType) -> None:
        self.session = session
        self.keras = keras
        self.accumulates = int(session.config["grad_accumulation"]) if session.wants("grad_accumulation") else 0
        self.scale = float(session.config["lr_scale"]) if session.wants("lr_scale") else 1.0
        self.made: list[str] = []
        self.scaled = 0
        self.accumulated_by_script = 0
        self.on_first: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Patches the base class: every optimizer's own ``__init__`` calls it."""
        patch(sys.modules["keras.src.optimizers.base_optimizer"].BaseOptimizer, "__init__", self._init)

    def _init(self, original: Any) -> Any:
        signature = inspect.signature(original)

        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            if type(optimizer).__name__ == _WRAPPER or not self.session.here:
                original(optimizer, *args, **kwargs)
                return
            try:
                given = signature.bind(optimizer, *args, **kwargs)
            except TypeError:
                original(optimizer, *args, **kwargs)  # raises the script's own TypeError
                return
            if not self.made:
                self.on_first()
            self.made.append(type(optimizer).__name__)
            self._turn(given.arguments)
            original(*given.args, **given.kwargs)

        return __init__

    def _turn(self, given: dict[str, Any]) -> None:
        written = given.get("gradient_accumulation_steps")
        if written:
            self.accumulated_by_script = int(written)
        elif self.accumulates > 1:
            given["gradient_accumulation_steps"] = self.accumulates
        if self.scale == 1.0:
            return
        rate = given.get("learning_rate")
        if isinstance(rate, (int, float)):
            given["learning_rate"] = float(rate) * self.scale
            self.scaled += 1
        elif isinstance(rate, self.keras.optimizers.schedules.LearningRateSchedule):
            given["learning_rate"] = self._scaled(rate)
            self.scaled += 1

    def _scaled(self, schedule: Any) -> Any:
        scale = self.scale

        class Scaled(self.keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc, name-defined]
            def __call__(self, step: Any) -> Any:
                return schedule(step) * scale

            def get_config(self) -> Any:
                return schedule.get_config()

        return Scaled()


def inner_optimizer(model: Any) -> Any:
    """The model's optimizer, without what scales its loss."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def accumulation_of(model: Any) -> int:
    """Micro-batches in one update, as the model's optimizer was made."""
    return int(getattr(inner_optimizer(model), "gradient_accumulation_steps", None) or 1)


def reduction_of(model: Any) -> str:
    """How the compiled loss depends on the batch: "mean", "sum" or "unknown"."""
    losses = model.loss
    flat = list(losses.values()) if isinstance(losses, dict) else losses
    flat = flat if isinstance(flat, (list, tuple)) else [flat]
    found = {_reduction_of_one(loss) for loss in flat if loss is not None}
    return found.pop() if len(found) == 1 else "unknown"


def _reduction_of_one(loss: Any) -> str:
    if isinstance(loss, str):
        return "mean"
    reduction = getattr(loss, "reduction", None)
    if reduction in ("sum_over_batch_size", "mean"):
        return "mean"
    if reduction == "sum":
        return "sum"
    # Keras wraps a plain function into a loss that takes the mean over the batch.
    return "mean" if callable(loss) and reduction is None else "unknown"


def compute_dtypes(model: Any) -> dict[str, int]:
    """Number format → how many layers with weights of their own compute in it."""
    found: dict[str, int] = {}
    for layer in model._flatten_layers(include_self=False):
        if layer.weights and not any(True for _ in layer._flatten_layers(include_self=False)):
            dtype = str(layer.compute_dtype)
            found[dtype] = found.get(dtype, 0) + 1
    return found


def has_batch_norm(model: Any) -> bool:
    """Whether a layer's result for one sample depends on the others of its batch."""
    return any("BatchNormalization" in type(layer).__name__ for layer in model._flatten_layers())
