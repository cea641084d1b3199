"""Whether the loss of a batch in transformers' Trainer is a mean over its samples, asked of the trainer itself.

A loss that holds each sample against the others of its batch (in-batch negatives, the hardest of a batch) isn't: in
parts there are fewer others, so that it is smaller for that alone. Another batch size is another loss there.
"""

from __future__ import annotations

import contextlib
import copy
import math
import sys
from collections.abc import Iterator
from typing import Any

from ..patches import instead
from ..session import Session
from .draws import Draws
from .parts import evaluating

NO_MEAN = "the loss of a batch isn't the mean of its samples' ({once:.3g} of {rows} samples, {others})"
MOST_ROWS = 16
"""That are asked about, and twice as many: log(32) is a quarter above log(16), which are such losses untrained. Never
more than are trained on, for the memory's sake: without gradients two take no more than one with them.
"""
MOST_WITHIN = 8
"""Datasets, each a part of the next one."""
ALIKE, SAME = 0.02, 0.001
"""How far what should be one loss may lie apart, as a share of it, and how far when the very same is asked again."""


class BatchesLook:
    """Keeps the batch size of the script as written where another one would be another loss.

    ``base`` is the library's Trainer. Asked once, with the second step: what a first one sets up is there.
    """

    def __init__(self, session: Session, base: Any) -> None:
        self._session = session
        self._base = base
        is_first = session.is_as_written and not session.request.knowledge.as_written
        self._due_in = 2 if is_first and session.ranks == 1 else 0

    def before(self, trainer: Any) -> None:
        """Before each step."""
        if not self._due_in:
            return
        self._due_in -= 1
        if not self._due_in:
            with contextlib.suppress(Exception):  # a stream of data, another version's, no memory for it
                if reason := _why_kept(self._session, trainer, self._base):
                    self._session.knobs.keep_script_value("batch_size", reason)


def _why_kept(session: Session, trainer: Any, base: Any) -> str:
    if type(trainer)._prepare_inputs is not base._prepare_inputs:
        return ""  # it may have the model write what is trained on, and keep that
    loader = trainer.callback_handler.train_dataloader
    drawn = Draws(sys.modules["torch"])
    try:
        unheard = instead(trainer, "log", lambda *_, **__: None)  # else its figures would be those of a step
        with session.clock.instruments.put_aside(), _as_it_was(loader.dataset), _as_it_was(trainer), unheard:
            return _why_no_mean(trainer, loader)
    finally:
        drawn.put_back()


def _why_no_mean(trainer: Any, loader: Any) -> str:
    """Why its loss isn't a mean over samples, or "". A mean, however its samples are weighted, is the same of each of
    them twice, and lies between those of two halves: the hardest of a batch are the same of each twice.
    """
    size = trainer.args.train_batch_size
    rows = max(2, min(MOST_ROWS, size // 2) // 2 * 2)
    apart = max(1, len(loader.dataset) // rows)  # neighbours may be of one class
    items = [loader.dataset[number * apart] for number in range(rows)]

    def loss(each: list[Any]) -> float:
        return _loss(trainer, loader.collate_fn([copy.deepcopy(item) for item in each]))  # it may take them apart

    once = loss(items)
    if not _lies_between(once, [loss(items)], SAME):
        return ""  # something in it is drawn with each call
    twice = loss(items + items) if 2 * rows <= size else once
    halves = [loss(items[::2]), loss(items[1::2])]
    if not all(map(math.isfinite, (twice, *halves))):
        return ""  # as of a half without any label
    if not _lies_between(twice, [once], ALIKE):
        return NO_MEAN.format(once=once, rows=rows, others=f"{twice:.3g} of each of them twice")
    if not _lies_between(once, halves, ALIKE):
        return NO_MEAN.format(once=once, rows=rows, others=f"{halves[0]:.3g} and {halves[1]:.3g} of two halves")
    return ""


@contextlib.contextmanager
def _as_it_was(asked: Any) -> Iterator[None]:
    """Puts back the attributes of a trainer, which may count its losses, or of a dataset and what it is a part of:
    with workers nothing was taken of them in this process, and a file that one opens with its first item would be
    inherited by the workers of the next epoch.
    """
    attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
    while hasattr(asked, "__dict__") and len(attributes) < MOST_WITHIN:
        attributes.append((vars(asked), dict(vars(asked))))
        asked = vars(asked).get("dataset")
    try:
        yield
    finally:
        for now, before in attributes:
            now.update(before)
            for name in now.keys() - before.keys():
                del now[name]


def _lies_between(value: float, others: list[float], share: float) -> bool:
    slack = share * max(abs(each) for each in others)
    return min(others) - slack <= value <= max(others) + slack


def _loss(trainer: Any, batch: Any) -> float:
    torch: Any = sys.modules["torch"]
    inputs = trainer._prepare_inputs(batch)
    # In that mode, and of that size, a compiled model would be compiled anew.
    stance = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()
    with stance, evaluating(trainer.model), torch.no_grad(), trainer.compute_loss_context_manager():
        return float(trainer.compute_loss(trainer.model, inputs, num_items_in_batch=None))
