"""One call of ``Model.fit``: what the script passed, which knobs it leaves no room for, and what runs within it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..knobs import not_as_studied
from ..records import Value
from .model import makes_own_function
from .types import Model

BATCH_REASONS = {
    "pydataset": "the script's PyDataset makes its batches itself",
    "generator": "the script's generator makes its batches itself",
    "loader": "a torch DataLoader makes the batches",
    "grain": "Grain makes the batches",
    "distributed": "the script shares its batches out to replicas itself",
    "adapter": "the script's DataAdapter makes its batches itself",
}
"""By what feeds ``fit``: why nobody else can make other batches of it."""

DRAWN_ALIKE = "its PyDataset has one worker, and several processes would draw the same random numbers each"
NOT_ON_TORCH = "Keras has it on TensorFlow and JAX only"


class Nesting:
    """Which of a model's methods run now, one within the other."""

    def __init__(self) -> None:
        self.fits = 0
        self.evaluations = 0

    @property
    def active(self) -> bool:
        """Whether a method of a model runs: what happens meanwhile is Keras' own, not the script's loop."""
        return self.fits > 0 or self.evaluations > 0


@dataclass
class FitCall:
    """The newest call of ``fit`` by the script.

    ``fed_by``: "arrays", "dataset" (of tf.data), "pydataset", "generator", "loader" (of torch), "grain", "distributed"
    (a strategy's) or "adapter" (the script's own). ``written``: knob → the script's own value. ``workers``: that
    prepare the batches of a PyDataset. ``custom_step``: whether the model has a training step of its own.
    ``sets_rate``: whether a callback sets the learning rate, ``lowers_rate``: whether one multiplies it.
    ``acts_by_batch`` and ``saves_by_batch``: names of callbacks that do so with batches, "" for none. ``epoch_steps``
    and ``validation_steps``: as the script counts them; 0 where it doesn't. ``refused``: knob → why it isn't turned in
    this call. ``dataset``: a weak reference to the one that feeds it. ``stored``: as ``callbacks.stored`` tells it.
    """

    model: Model
    fed_by: str
    custom_step: bool
    sets_rate: bool
    lowers_rate: bool = False
    acts_by_batch: str = ""
    saves_by_batch: str = ""
    stored: dict[str, str] = field(default_factory=dict)
    epoch_steps: int = 0
    validation_steps: int = 0
    written: dict[str, Value] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    dataset_len: int | None = None
    workers: int = 0
    dataset: Callable[[], object] = lambda: None

    @property
    def counted_steps(self) -> tuple[int, ...]:
        """The script's own ``steps_per_epoch`` and ``validation_steps``, as far as it gives them."""
        return tuple(steps for steps in (self.epoch_steps, self.validation_steps) if steps)

    @property
    def has_one_step(self) -> bool:
        """Whether the arrays that feed an epoch are one batch, as the script wrote it."""
        size = self.written.get("batch_size")
        return isinstance(size, int) and 0 < (self.dataset_len or 0) <= size

    def why_no_such_batches(self, old: int | None, new: int, known: Value | None) -> str:
        """Why the script's batches of ``old`` samples can't be made ones of ``new``; "" where they can.

        ``old`` is None where it isn't known. ``known``: samples of the batches that the config was made for: of others
        it would make steps of another size. An epoch of the script's own steps has to be made of whole ones.
        """
        why = not_as_studied("this fit has batches of", old, known)
        if why:
            return why
        steps, per_call = self.epoch_steps, int(self.written["steps_per_execution"])
        if not steps or old == new:
            return ""
        if old is None:
            return "steps_per_epoch can't follow the batch size: that of the script isn't known"
        if steps * old % new:
            return f"{steps} steps of {old} samples each can't be made of batches of {new}"
        taken = steps * old // new
        uneven = f"{taken} steps of {new} samples are no multiple of the script's own steps_per_execution, {per_call}"
        return uneven if taken % per_call else ""

    def why_not_several_steps(self, wanted: int, epoch_steps: int, backend: str) -> str:
        """Why so many steps in one call would train another way than one, or not at all; "" where they wouldn't.

        ``epoch_steps``: in an epoch of this call's batches; 0 where they aren't counted.
        """
        if backend == "torch":
            return NOT_ON_TORCH
        if makes_own_function(self.model):
            return "the model makes its training function itself"
        if self.acts_by_batch:
            own = int(self.written["steps_per_execution"])
            if own > 1:
                return f"{self.acts_by_batch} acts every {own} batches, as the script has it, and would do so at others"
            return f"{self.acts_by_batch} acts with every batch, and would be called with some of them only"
        if self.saves_by_batch:
            return f"{self.saves_by_batch} saves after a number of batches"
        uneven = [steps for steps in (epoch_steps, self.validation_steps) if steps % wanted]
        whose = "as the script counts them" if epoch_steps == self.epoch_steps else "in batches of this size"
        return f"{uneven[0]} steps, {whose}, are no multiple of {wanted}" if uneven else ""
