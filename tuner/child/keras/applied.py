"""For ``autotune run``: at how many places the knobs of the profile were applied in Keras and TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .. import allocator
from ..applied import Effect
from ..tensorflow import FRAMEWORK, elsewhere
from ..tensorflow.data.refused import Applied
from ..tensorflow.data.watch import KNOBS as DATA_KNOBS
from ..tensorflow.mixed_precision import BF16, in_words
from . import threads
from .model import accumulation_of
from .settings import MODEL_KNOBS
from .watches import Watches

NO_FIT = "Model.fit wasn't called"
NO_DATASET = "no tf.data dataset of the training was changed"
OF_TENSORFLOW = ("strategy", "memory_growth", "grappler_mixed_precision")
"""The knobs that turn TensorFlow's own runtime."""


class AppliedKnobs:
    """Reads the watches; nothing is patched for it."""

    def __init__(self, watches: Watches) -> None:
        self.watches = watches
        self.session = watches.session
        self.knobs = watches.session.knobs

    def effects(self) -> dict[str, Effect]:
        """Of each knob of the config that a patch of Keras or TensorFlow applies; none while others train."""
        watches = self.watches
        if (watches.tf is None and watches.keras is None) or not self.session.may_be_of(FRAMEWORK):
            return {}
        looks: dict[str, Callable[[], Effect]] = {
            **{knob: partial(self._data, knob) for knob in DATA_KNOBS},
            **{knob: partial(self._model, knob) for knob in MODEL_KNOBS},
            "batch_size": self._batch_size,
            "workers": self._workers,
            "precision": self._precision,
            "grad_accumulation": self._accumulation,
            "lr_scale": self._rate,
            "strategy": self._strategy,
            "memory_growth": lambda: Effect(1),
            "allocator": self._allocator,
            "grappler_mixed_precision": self._mixed_precision,
        }
        if watches.backend != "tensorflow":  # it may be there, for its datasets
            looks |= dict.fromkeys(OF_TENSORFLOW, lambda: Effect(0, elsewhere(watches.backend)))
        told = {knob: look() for knob, look in looks.items() if self.knobs.wants(knob)}
        return told | threads.effects(self.session, watches)

    def _data(self, knob: str) -> Effect:
        applied = self.watches.datasets.applied.get(knob, Applied()) if self.watches.datasets is not None else Applied()
        return Effect(applied.changed, applied.refused or NO_DATASET)

    def _batch_size(self) -> Effect:
        fits = self.watches.fits
        if fits is None or fits.call is None:
            return self._data("batch_size")
        call = fits.call
        refused = call.refused.get("batch_size") or call.refused.get("grad_accumulation") or fits.split.refused
        if refused:
            return Effect(0, refused)
        # A batch that is split stays as large as the script made it.
        return Effect(1) if fits.call.fed_by == "arrays" or fits.split.newest > 1 else self._data("batch_size")

    def _model(self, knob: str) -> Effect:
        call = self.watches.fits.call if self.watches.fits is not None else None
        if call is not None:
            value = getattr(call.model, knob)
            why = call.refused.get(knob) or f"the model's own is {value}"
            return Effect(1) if value == self.knobs.wanted(knob) else Effect(0, why)
        if knob == "jit_compile" and self.watches.loops is not None:
            seen = self.watches.loops.functions.compilation()
            return Effect(seen.changed, seen.why) if seen is not None else Effect(0, "no tf.function was called twice")
        return Effect(0, NO_FIT)

    def _workers(self) -> Effect:
        call = self.watches.fits.call if self.watches.fits is not None else None
        if call is None:
            return Effect(0, NO_FIT)
        why = call.refused.get("workers", "" if call.fed_by == "pydataset" else "no PyDataset feeds training")
        return Effect(int(not why), why)

    def _precision(self) -> Effect:
        policy = self.watches.policy
        if policy.chosen_by_script:
            return Effect(0, f"the script chooses the policy {policy.chosen_by_script} itself")
        return Effect(int(policy.forced is not None and policy.asked > 0), "no layer of Keras was made")

    def _accumulation(self) -> Effect:
        fits = self.watches.fits
        if fits is None or fits.call is None:
            return Effect(0, NO_FIT)
        observed = accumulation_of(fits.call.model) * fits.split.newest
        why = fits.call.refused.get("grad_accumulation") or fits.split.refused or f"the model's own is {observed}"
        return Effect(int(observed == self.knobs.wanted("grad_accumulation")), why)

    def _rate(self) -> Effect:
        rates = self.watches.optimizers.rates if self.watches.optimizers is not None else None
        if rates is not None and rates.dropped:
            return Effect(0, rates.dropped)
        return Effect(rates.scaled if rates is not None else 0, "no optimizer has a rate")

    def _strategy(self) -> Effect:
        strategies, fits = self.watches.strategies, self.watches.fits
        if strategies is None:
            return Effect(0, "TensorFlow isn't used")
        observed = strategies.in_use(fits.call.model if fits is not None and fits.call is not None else None)
        wanted = self.knobs.wanted("strategy")
        return Effect(1) if observed == wanted else Effect(0, f"the training runs on {observed}")

    def _allocator(self) -> Effect:
        return Effect(int(allocator.in_use() == self.knobs.wanted("allocator")), allocator.NOT_LOADED)

    def _mixed_precision(self) -> Effect:
        """By the graphs that ran; that it is off shows in the setting alone."""
        mixed = self.watches.mixed_precision
        if mixed is None:
            return Effect(0, "TensorFlow isn't used")
        if not self.knobs.wanted("grappler_mixed_precision"):
            return Effect(int(not mixed.is_on), "the script set it otherwise")
        counts = mixed.ran()
        if counts:
            return Effect(int(counts[BF16] > 0), in_words(counts))
        return Effect(0, mixed.why_unseen, is_unseen=mixed.is_traced)
