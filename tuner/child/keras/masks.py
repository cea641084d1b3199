"""Losses that a mask cuts: Keras divides their sum by what the mask leaves, and not by the rows of the batch.

The parts of such a batch have other divisors than the whole, so that their mean is another loss. A mask that ends
inside of the model, in a layer that returns one answer for a sequence, changes nothing.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import ModuleType
from typing import Any

from ..patches import patch
from ..tensorflow.types import Result, Structure
from .types import Model

MASKED = "its loss is a mean over what a mask leaves, and in parts of a batch each would have a mean of its own"
UNTOLD = "whether a mask reaches its loss can't be told before a step is taken"
_MEANS = frozenset({"sum_over_batch_size", "mean"})


class MaskWatch:
    """Patches what reduces a loss, and notes the models whose loss was given a mask.

    ``model``: of the current ``fit``; None outside of any.
    """

    def __init__(self, keras: ModuleType) -> None:
        self.keras = keras
        self.model: Model | None = None
        self._masked: weakref.WeakKeyDictionary[Model, str] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Called once Keras is imported."""
        patch(sys.modules["keras.src.losses.loss"], "reduce_weighted_values", self._reduce)

    def _reduce(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def reduce_weighted_values(*args: object, **kwargs: object) -> Result:
            # PyTorch may be compiling this: where there is no mask, there is nothing here that it couldn't.
            if kwargs.get("mask") is not None and kwargs.get("reduction") in _MEANS and self.model is not None:
                self._masked[self.model] = MASKED
            return original(*args, **kwargs)

        return reduce_weighted_values

    def why_whole(self, model: Model) -> str:
        """Why the model's batches can't be split, as far as was seen: a mask has reached its loss; "" for nothing."""
        return self._masked.get(model, "")

    def ask(self, model: Model, data: Structure, state: Iterable[tuple[object, object]] = ()) -> str:
        """As ``why_whole``, of a model that makes masks, before any step is taken: by the loss of such data.

        ``state``: variables and their values, with JAX. Nothing of the model is changed.
        """
        before, self.model = self.model, model
        try:
            with self._without_effect(state):
                x, y, weights = self.keras.utils.unpack_x_y_sample_weight(data)
                model.compute_loss(x=x, y=y, y_pred=model(x, training=True), sample_weight=weights)
        except Exception as error:
            self._masked.setdefault(model, f"{UNTOLD}: {type(error).__name__}")
        finally:
            self.model = before
        return self.why_whole(model)

    def _without_effect(self, state: Iterable[tuple[object, object]]) -> ExitStack:
        """A context in which no variable is changed: in TensorFlow's graph nothing of it is left, either."""
        stack = ExitStack()
        backend = self.keras.backend.backend()
        if backend == "tensorflow":
            graphs: Any = sys.modules["tensorflow.python.framework.func_graph"]
            stack.enter_context(graphs.FuncGraph("autotune_masks").as_default())
        elif backend == "torch":
            torch = sys.modules["torch"]
            cards = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
            stack.enter_context(torch.random.fork_rng(devices=cards))  # what Keras drops it draws from there
            stack.enter_context(torch.no_grad())
        stack.enter_context(self.keras.StatelessScope(state_mapping=list(state)))
        return stack


def makes_masks(model: Model) -> bool:
    """Whether a layer or a loss of the model may make a mask."""
    layers: Iterable[object] = model._flatten_layers()
    return any(map(_is_masking, layers)) or any(
        getattr(loss, "ignore_class", None) is not None for loss in sys.modules["keras"].tree.flatten(model.loss)
    )


def _is_masking(layer: object) -> bool:
    """Whether the layer masks, or a class of the script's own says how it does."""
    owner = next((cls for cls in type(layer).__mro__ if "compute_mask" in vars(cls)), None)
    own = owner is not None and not owner.__module__.startswith("keras.src.")
    return own or bool(getattr(layer, "mask_zero", False)) or type(layer).__name__ == "Masking"
