"""Trainers on transformers' that deal out what their loader gives, as where a model writes what it is trained on.

TRL's GRPO has its loader give the prompts of several backwards at once, and once more for each of them, and trains on
a part each time: what the loader gives is that many times what is trained on.
"""

from __future__ import annotations

import contextlib
from typing import Any

from ..session import Session

OTHERWISE = (
    "the trainer deals out what its loader gives by {times} backwards, and a step has {parts}: with batches of another"
    " size it would be dealt out by others"
)


class DealingLook:
    """Tells by how many backwards a batch is dealt out, once, with the first step. ``base``: the library's Trainer."""

    def __init__(self, session: Session, base: Any) -> None:
        self._session = session
        self._base = base
        self._is_due = True

    def before(self, trainer: Any) -> None:
        """Before each step."""
        if not self._is_due or not self._session.here:
            return
        self._is_due = False
        with contextlib.suppress(Exception):  # another version's
            self._look(trainer)

    def _look(self, trainer: Any) -> None:
        if type(trainer)._prepare_inputs is self._base._prepare_inputs:
            return  # the library's takes each batch as it comes
        loader, size = trainer.callback_handler.train_dataloader, trainer.args.train_batch_size
        given = loader.batch_size or loader.batch_sampler.batch_size
        times, parts = given // size, trainer.args.gradient_accumulation_steps
        if given % size or times < 2:
            return
        self._session.facts.times_dealt = times
        if times != parts:
            self._session.knobs.keep_script_value("batch_size", OTHERWISE.format(times=times, parts=parts))
