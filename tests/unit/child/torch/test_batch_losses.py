"""Whether the loss of a batch is a mean over its samples, asked of stand-ins for transformers' Trainer."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.in_process import Log, session_of
from torch.nn import functional

from tuner.child.patches import unpatch_all
from tuner.child.session import Session
from tuner.child.torch import trainers

ROWS = 16
_CONTEXT = "compute_loss_context_manager"  # no name that one of ours may have


def _contrastive(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Each sample's own target is held against those of all others in its batch."""
    return functional.cross_entropy(20 * functional.normalize(outputs) @ targets.T, torch.arange(len(outputs)))


def _hardest(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Each sample is only held against what is nearest to it of all that are in its batch."""
    return (outputs[:, None] - targets[None]).square().sum(2).min(1).values.mean()


def _weighted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """As the mean over tokens, of which samples have different numbers."""
    weights = targets[:, 0].abs()
    return ((outputs - targets).square().mean(1) * weights).sum() / weights.sum()


def _drawn(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """As of tokens that are masked at random: nothing can be said of it."""
    return (outputs - targets).square().mean() * (1 + torch.rand(()))


def _summed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().sum()


def _mean(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().mean()


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout = torch.nn.Linear(8, 8), torch.nn.Dropout()

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.dropout(self.layer(inputs))


class Trainer:
    """What the library's has of these, with the names of its own."""

    compute_loss_func = label_smoother = None
    model_accepts_loss_kwargs = False
    args = SimpleNamespace(train_batch_size=ROWS)

    def __init__(self, loss: Callable[..., torch.Tensor], dataset: Any, collate: Callable[..., Any]) -> None:
        torch.manual_seed(0)
        self.model, self.loss = Model(), loss
        loader = SimpleNamespace(dataset=dataset, collate_fn=collate)
        self.callback_handler = SimpleNamespace(train_dataloader=loader)
        self.in_train_mode: list[bool] = []

    def log(self, logs: dict[str, float]) -> None:
        """Tells nobody."""

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **told: Any) -> Any:
        self.in_train_mode.append(model.training)
        return self.loss(model(inputs["x"]), inputs["y"])

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        return self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=num_items_in_batch)


setattr(Trainer, _CONTEXT, lambda self: contextlib.nullcontext())


def _collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _dataset() -> list[dict[str, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(0)
    return [{name: torch.randn(8, generator=drawn) for name in "xy"} for _ in range(4 * ROWS)]


def _after_three_steps(trainer: Any, kind: Any = Trainer, **request: Any) -> Session:
    """What is known after three steps of the trainer, whose library's class is ``kind``."""
    session = session_of({"device": "cpu", "folder": "trial", **request}, Log())
    trainers.transformers_log(session, SimpleNamespace(Trainer=kind))  # type: ignore[arg-type]
    batch = _collate(_dataset()[:ROWS])
    try:
        for _ in range(3):
            trainer.training_step(trainer.model, batch)
    finally:
        unpatch_all()
    return session


@pytest.mark.parametrize(
    ("loss", "is_kept"),
    [(_contrastive, True), (_hardest, True), (_summed, True), (_mean, False), (_weighted, False), (_drawn, False)],
)
def test_a_batch_keeps_its_size_where_its_loss_is_no_mean_over_samples(loss: Any, *, is_kept: bool) -> None:
    """A loss that holds each sample against the others of its batch has fewer of them in each of two parts, and is
    smaller for that alone: two parts of half the size were offered as the same training.
    """
    reason = _after_three_steps(Trainer(loss, _dataset(), _collate)).knobs.kept_by_script.get("batch_size", "")
    assert ("the loss of a batch isn't the mean of its samples'" in reason) is is_kept, reason


def test_asking_leaves_the_training_as_it_was() -> None:
    """The numbers that it draws, its mode, its gradients."""
    drawn = []
    for request in ({"config": {"num_workers": 1}}, {}):
        torch.manual_seed(3)
        trainer = Trainer(_mean, _dataset(), _collate)
        _after_three_steps(trainer, **request)
        drawn.append(torch.rand(4))
        assert trainer.model.training and trainer.model.dropout.training
        assert trainer.model.layer.weight.grad is None
    assert len(trainer.in_train_mode) == 8 and not all(trainer.in_train_mode), "it was asked, without dropout"
    assert torch.equal(*drawn)


def test_nothing_is_asked_where_the_trainer_prepares_its_batches_by_itself() -> None:
    """It may have the model write what is trained on next."""

    class Writing(Trainer):
        def _prepare_inputs(self, inputs: Any) -> Any:
            return dict(inputs)

    trainer = Writing(_contrastive, _dataset(), _collate)
    assert "batch_size" not in _after_three_steps(trainer).knobs.kept_by_script
    assert len(trainer.in_train_mode) == 3


def test_what_cant_be_asked_is_left_as_it_was() -> None:
    """A stream has no items to take; a collator may refuse."""

    def refuse(rows: Any) -> Any:
        raise ValueError("no such batch")

    for trainer in (Trainer(_contrastive, iter(_dataset()), _collate), Trainer(_contrastive, _dataset(), refuse)):
        assert "batch_size" not in _after_three_steps(trainer).knobs.kept_by_script
        assert trainer.in_train_mode == [True] * 3


class Opening:
    """A dataset that opens its file with the first item, in each worker for itself: none may inherit an open one."""

    def __init__(self) -> None:
        self.file: Any = None

    def __len__(self) -> int:
        return 4 * ROWS

    def __getitem__(self, number: int) -> Any:
        self.file = self.file or _dataset()
        return self.file[number]


def test_asking_leaves_the_data_as_they_were() -> None:
    """A collator may take the labels out of its items, which lie in a list: the next epoch has none, then."""

    def collate(rows: list[dict[str, torch.Tensor]]) -> Any:
        targets = torch.stack([row.pop("y") for row in rows])
        return {**_collate(rows), "y": targets}

    items = _dataset()
    reason = _after_three_steps(Trainer(_contrastive, items, collate)).knobs.kept_by_script.get("batch_size", "")
    assert all(item.keys() == {"x", "y"} for item in items) and reason

    dataset = Opening()
    session = _after_three_steps(Trainer(_contrastive, torch.utils.data.Subset(dataset, range(64)), _collate))
    assert dataset.file is None and "batch_size" in session.knobs.kept_by_script


def test_a_half_without_any_label_says_nothing() -> None:
    """The mean over the labelled tokens of none is no number; the one over those of a step is."""

    def labelled(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square()[targets.isfinite()].mean()

    items = _dataset()
    for item in items[::16]:
        item["y"][:] = math.nan
    assert "batch_size" not in _after_three_steps(Trainer(labelled, items, _collate)).knobs.kept_by_script


@pytest.mark.parametrize(("size", "most"), [(1, 2), (2, 2), (3, 2), (4, 4), (7, 4), (16, 16)])
def test_no_more_rows_are_asked_about_than_are_trained_on(size: int, most: int) -> None:
    """Without gradients two take the memory of one: the baseline's peak is the training's."""
    counts: list[int] = []

    def counted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if not outputs.requires_grad:
            counts.append(len(outputs))
        return _mean(outputs, targets)

    trainer = Trainer(counted, _dataset(), _collate)
    trainer.args = SimpleNamespace(train_batch_size=size)
    assert "batch_size" not in _after_three_steps(trainer).knobs.kept_by_script
    assert max(counts) == most
    trainer = Trainer(_contrastive, _dataset(), _collate)
    trainer.args = SimpleNamespace(train_batch_size=size)
    assert "batch_size" in _after_three_steps(trainer).knobs.kept_by_script


def test_what_a_trainer_counts_and_logs_is_of_its_own_steps() -> None:
    """A loss that is logged as it is computed would be the user's metric, and a warm-up of it would be ahead."""

    class Counting(Trainer):
        calls = 0

        def __init__(self, *of: Any) -> None:
            super().__init__(*of)
            self.logged: list[float] = []

        def log(self, logs: dict[str, float]) -> None:
            self.logged.append(logs["loss"])

        def compute_loss(self, *of: Any, **told: Any) -> Any:
            self.calls += 1
            loss = super().compute_loss(*of, **told)
            self.log({"loss": loss.item()})
            return loss

    trainer = Counting(_contrastive, _dataset(), _collate)
    assert "batch_size" in _after_three_steps(trainer, Counting).knobs.kept_by_script
    assert (trainer.calls, len(trainer.logged)) == (3, 3)


@pytest.mark.slow  # it imports the compiler
def test_nothing_is_compiled_for_the_asking() -> None:
    """In another mode and of another size a compiled model would be compiled anew, for minutes."""
    compiled: list[Any] = []

    def compiler(graph: Any, given: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    trainer = Trainer(_contrastive, _dataset(), _collate)
    trainer.model = torch.compile(trainer.model, backend=compiler)
    assert "batch_size" in _after_three_steps(trainer).knobs.kept_by_script
    assert len(compiled) == 1
