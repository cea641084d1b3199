"""What Keras models are made with: the number format of their layers, their training step, the optimizer's rate."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..patches import patch
from ..session import Session
from .rates import RateWatch
from .types import KerasOptimizer, Model, Policy

POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
_WRAPPER = "LossScaleOptimizer"  # it has no rate and no gradients of its own


class PolicyWatch:
    """The dtype policy that layers are made with, as long as the script chooses none itself.

    Keras holds the policy per thread, and ``clear_session`` resets it: so the question for it is patched.

    ``chosen_by_script``: the name of the policy that the script sets itself; "" for none. ``asked``: how often a layer
    has asked. ``on_first`` is called before the first answer.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.chosen_by_script = ""
        self.forced: Policy | None = None
        self.asked = 0
        self.on_first: Callable[[], None] = lambda: None
        self._given: dict[int, Policy] = {}
        """By identity: those that were the answer, which stay alive so that no other one gets their identity."""

    def install(self, keras: ModuleType) -> None:
        """Called before any layer is made."""
        policies = sys.modules["keras.src.dtype_policies.dtype_policy"]
        patch(policies, "set_dtype_policy", self._set)
        for owner in (keras.config, keras.mixed_precision):  # by other names among the modules before Keras 3.10
            for name in ("set_dtype_policy", "set_global_policy"):
                if hasattr(owner, name):
                    patch(owner, name, self._set)
        if self.session.knobs.wants("precision") and self.session.request.config["precision"] in POLICIES:
            self.forced = policies.DTypePolicy(POLICIES[self.session.request.config["precision"]])
        patch(policies, "dtype_policy", self._get)

    def _set(self, original: Callable[[str | Policy], None]) -> Callable[[str | Policy], None]:
        def set_dtype_policy(policy: str | Policy) -> None:
            original(policy)
            name = policy if isinstance(policy, str) else policy.name
            if name != "float32":
                self.chosen_by_script = name

        return set_dtype_policy

    def _get(self, original: Callable[[], Policy]) -> Callable[[], Policy]:
        def dtype_policy() -> Policy:
            if not self.asked:
                self.on_first()
            self.asked += 1
            own = original()
            given = own if self.forced is None or self.chosen_by_script or own.name != "float32" else self.forced
            self._given[id(given)] = given
            return given

        return dtype_policy

    def gave(self, policy: Policy) -> bool:
        """Whether this very policy was an answer: a layer that has it has asked for none of its own."""
        return id(policy) in self._given


class OptimizerWatch:
    """The optimizers that the script makes; ``rates`` are theirs.

    ``created``: names of their classes. ``accumulated_by_script``: steps of accumulation that the script asks for; 0
    for none. ``scales_losses``: whether a loss was passed to an optimizer for scaling. ``on_first`` is called before
    the first optimizer is made.
    """

    def __init__(self, session: Session, keras: ModuleType) -> None:
        self.session = session
        self.keras = keras
        self.rates = RateWatch(session, keras)
        self.created: list[str] = []
        self.accumulated_by_script = 0
        self.scales_losses = False
        self.on_first: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Patches the base class: every optimizer's own ``__init__`` calls it."""
        base = sys.modules["keras.src.optimizers.base_optimizer"].BaseOptimizer
        patch(base, "__init__", self._init)
        self.rates.install(base)
        if self.session.applied is not None and self.session.request.config:
            patch(base, "stateless_apply", self._noting)
        if self.session.measuring:
            for owner in (base, self.keras.optimizers.LossScaleOptimizer):
                patch(owner, "scale_loss", self._scale_loss)

    def _init(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        def __init__(optimizer: KerasOptimizer, *args: object, **kwargs: object) -> None:
            if type(optimizer).__name__ == _WRAPPER or not self.session.here:
                original(optimizer, *args, **kwargs)
                return
            try:
                bound = signature.bind(optimizer, *args, **kwargs)
            except TypeError:
                original(optimizer, *args, **kwargs)  # raises the script's own TypeError
                return
            if not self.created:
                self.on_first()
            self.created.append(type(optimizer).__name__)
            self._apply(bound.arguments)
            original(*bound.args, **bound.kwargs)
            self.rates.made(optimizer, bound.arguments.get("learning_rate"))

        return __init__

    def _apply(self, arguments: dict[str, Any]) -> None:
        """Changes an optimizer's arguments by the config."""
        written = arguments.get("gradient_accumulation_steps")
        if written:
            self.accumulated_by_script = int(written)
        if "learning_rate" in arguments:
            arguments["learning_rate"] = self.rates.given(arguments["learning_rate"])

    def _noting(self, original: Callable[..., object]) -> Callable[..., object]:
        """Says in an applied run that a loop of JAX's trains: also where it is traced only."""

        def stateless_apply(optimizer: KerasOptimizer, *args: object, **kwargs: object) -> object:
            if self.session.applied is not None:
                self.session.applied.trains()
            return original(optimizer, *args, **kwargs)

        return stateless_apply

    def _scale_loss(self, original: Callable[..., object]) -> Callable[..., object]:
        def scale_loss(optimizer: KerasOptimizer, *args: object, **kwargs: object) -> object:
            self.scales_losses = True  # PyTorch may be compiling this: for each value of a count it would do so anew
            return original(optimizer, *args, **kwargs)

        return scale_loss


def has_own_step(kind: type) -> bool:
    """Whether a class of models has another training step than Keras' own for the backend."""
    own = (cls for cls in kind.__mro__ if cls.__module__.startswith("keras.src.backend."))
    base = next((cls.__dict__["train_step"] for cls in own if "train_step" in cls.__dict__), None)
    return getattr(kind, "train_step", None) is not base


def defines(kind: type, method: str) -> bool:
    """Whether a class of models has a method of the script's own in place of Keras'."""
    owner = next((cls for cls in kind.__mro__ if method in vars(cls)), None)
    return owner is not None and not owner.__module__.startswith("keras.src.")


def makes_own_function(model: Model) -> bool:
    """Whether the model makes its training function itself: how many batches a call of it takes is its own affair."""
    return defines(type(model), "make_train_function")


def inner_optimizer(model: Model) -> KerasOptimizer:
    """The model's optimizer, without what scales its loss."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def accumulation_of(model: Model) -> int:
    """Micro-batches in one update, as the model's optimizer was made."""
    return int(getattr(inner_optimizer(model), "gradient_accumulation_steps", None) or 1)


def compute_dtypes(model: Model) -> dict[str, int]:
    """Number format → how many layers with weights of their own compute in it."""
    counts: dict[str, int] = {}
    for layer in model._flatten_layers(include_self=False):
        if layer.weights and not any(True for _ in layer._flatten_layers(include_self=False)):
            dtype = str(layer.compute_dtype)
            counts[dtype] = counts.get(dtype, 0) + 1
    return counts


def has_batch_norm(model: Model) -> bool:
    """Whether a layer's result for one sample depends on the others of its batch."""
    return any("BatchNormalization" in type(layer).__name__ for layer in model._flatten_layers())
