"""The watches on PyTorch in this very process: what counts as training and what a micro-batch is."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin, seeded_model

from tuner.child import arguments

__all__ = ["begin"]


Begin = Callable[..., Any]


def _data(samples: int = 48, batch: int = 4, **more: Any) -> Any:
    dataset = torch.utils.data.TensorDataset(torch.randn(samples, 5), torch.randn(samples, 1))
    return torch.utils.data.DataLoader(dataset, batch_size=batch, **more)


def _fit(model: Any, optimizer: Any, batches: Any, before: Callable[[Any], object] = lambda batch: None) -> int:
    """Trains on every batch; returns the number of samples."""
    seen = 0
    for x, y in batches:
        before(x)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        seen += len(x)
    return seen


# what counts as training


@pytest.mark.parametrize("eval_mode", [True, False])
def test_validation_on_the_training_data_counts_no_samples(begin: Begin, eval_mode: bool) -> None:
    trial = begin()
    model, optimizer = seeded_model()
    train = _data()
    trained = 0
    for _ in range(3):
        model.train()
        trained += _fit(model, optimizer, train)
        model.train(not eval_mode)
        with torch.no_grad():
            for x, _ in train:
                model(x)
    trial.end()
    blocks = trial.log.of("block")
    assert sum(b["samples"] for b in blocks) == trained - 4, "the first step is start-up"
    assert sum(b["flagged"] for b in blocks) == 3
    assert not any(b["samples"] for b in blocks if b["flagged"])


def test_what_recurs_with_every_step_is_part_of_the_step(begin: Begin) -> None:
    """A frozen teacher runs without gradients in each step; the validation between epochs is still set apart."""
    trial = begin()
    model, optimizer = seeded_model()
    teacher = torch.nn.Linear(5, 1).eval()

    def teach(x: Any) -> None:
        with torch.no_grad():
            teacher(x)

    train, validation = _data(), _data()
    trained = 0
    for _ in range(3):
        trained += _fit(model.train(), optimizer, train, teach)
        with torch.no_grad():
            for x, _ in validation:
                model.eval()(x)
    trial.end()
    blocks = trial.log.of("block")
    assert sum(b["samples"] for b in blocks if not b["flagged"]) == trained - 4
    assert sum(b["flagged"] for b in blocks) == 3


def test_a_look_at_the_batch_before_it_is_trained_on_takes_nothing_away(begin: Begin) -> None:
    trial = begin()
    model, optimizer = seeded_model()
    looks = itertools.count()

    def look(x: Any) -> None:
        with torch.set_grad_enabled(next(looks) % 4 != 3):
            model(x)

    trained = _fit(model, optimizer, _data(), look)
    trial.end()
    assert sum(b["samples"] for b in trial.log.of("block")) == trained - 4


def test_scores_of_every_step_are_part_of_the_step(begin: Begin) -> None:
    """A full-batch script evaluates after each step: there would be no block left."""
    trial = begin()
    model, optimizer = seeded_model()
    batch = torch.randn(8, 5), torch.randn(8, 1)
    for _ in range(20):
        _fit(model.train(), optimizer, [batch])
        with torch.no_grad():
            model.eval()(batch[0])
    trial.end()
    assert sum(b["steps"] for b in trial.log.of("block") if not b["flagged"]) == 19


def test_a_loader_made_anew_each_epoch_stays_the_same(begin: Begin) -> None:
    trial = begin()
    model, optimizer = seeded_model()
    trained = 0
    for _ in range(3):
        for made in [_data(shuffle=True)]:
            trained += _fit(model, optimizer, made)
    facts = trial.end()
    assert [(loader["made"], loader["fetches"]) for loader in facts["loaders"]] == [(3, 36)]
    assert facts["left_out"]["persistent_workers"].startswith("the script makes a loader for each epoch")
    assert sum(b["samples"] for b in trial.log.of("block")) == trained - 4


def test_loaders_made_in_a_loop_before_they_are_used_are_told_apart(begin: Begin) -> None:
    trial = begin()
    train, validation = (_data(samples) for samples in (48, 24))
    _fit(*seeded_model(), train)
    assert [loader["fetches"] for loader in trial.end()["loaders"]] == [12, 0]
    assert len(validation) == 6


IterableDataset: Any = torch.utils.data.IterableDataset


class Stream(IterableDataset):  # type: ignore[misc]
    """Eighteen samples: the last batch of four isn't whole."""

    def __iter__(self) -> Any:
        return iter(torch.randn(18, 5, 6))


@pytest.mark.parametrize("collate", [None, list, lambda images: torch.stack(images, dim=1)])
def test_samples_are_counted_whatever_the_batch_looks_like(begin: Begin, collate: Any) -> None:
    """Lists of images as in detection, or the samples along the second dimension as in translation."""
    counted = {}
    for dataset in (list(Stream()), Stream()):
        trial = begin()
        model = torch.nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for batch in torch.utils.data.DataLoader(dataset, batch_size=4, collate_fn=collate):
            optimizer.zero_grad()
            model(batch[0] if collate is list else batch).sum().backward()
            optimizer.step()
        trial.end()
        counted[type(dataset)] = trial.session.clock.total_samples
    # Where the tensors don't show it, an iterable dataset's last batch is taken for a whole one.
    assert counted == {list: 18, Stream: 20 if collate else 18}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("batch", [4, 12, 30])
def test_a_batch_that_is_larger_than_the_data_is_the_data(begin: Begin, batch: int, stream: bool) -> None:
    trial = begin()
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Stream() if stream else list(Stream()), batch_size=batch)
    for _ in range(3):
        for rows in loader:
            optimizer.zero_grad()
            model(rows).sum().backward()
            optimizer.step()
    facts = trial.end()
    assert (facts["unit"], trial.samples) == ("samples", 3 * 18)


def test_the_main_loader_takes_over_from_an_earlier_one(begin: Begin) -> None:
    trial = begin()
    model, optimizer = seeded_model()
    _fit(model, optimizer, _data(samples=8))
    main = _data(samples=400)
    _fit(model, optimizer, main)
    facts = trial.end()
    assert facts["training_loaders"] == [facts["loaders"][1]["key"]]
    assert trial.session.clock.total_samples >= 380


def test_every_evaluation_of_a_closure_is_a_step(begin: Begin) -> None:
    trial = begin()
    model, _ = seeded_model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, tolerance_grad=0, tolerance_change=0)
    x, y = torch.randn(32, 5), torch.randn(32, 1)
    evaluations = 0

    def closure() -> Any:
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    facts = trial.end()
    assert facts["steps"] == evaluations > 3
    assert (facts["as_written"]["grad_accumulation"], facts["left_out"].get("grad_accumulation")) == (1, None)


@pytest.mark.parametrize("counts_samples", [True, False])
def test_a_script_can_count_steps_that_cant_be_seen(begin: Begin, counts_samples: bool) -> None:
    trial = begin()
    for step in range(10, 110, 10):
        time.sleep(0.002)
        trial.session.report({"step": step, "loss": 0.5, **({"samples": 8.0 * step} if counts_samples else {})})
    facts = trial.end()
    blocks = trial.log.of("block")
    assert sum(b["steps"] for b in blocks) == 90, "the first report is start-up"
    assert sum(b["samples"] for b in blocks) == (720 if counts_samples else 0)
    assert facts["unit"] == ("samples" if counts_samples else "steps")
    assert {m["name"] for m in trial.log.of("metric")} == {"loss"}


def test_steps_that_are_seen_are_not_counted_twice(begin: Begin) -> None:
    trial = begin()
    model, optimizer = seeded_model()
    for step, batch in enumerate(_data(), start=1):
        _fit(model, optimizer, [batch])
        trial.session.report({"step": step})
    assert trial.end()["steps"] == 12


def test_an_option_of_the_scripts_own_lifts_what_the_patches_cant_do(begin: Begin) -> None:
    trial = begin()
    arguments.install(trial.session)
    parser = argparse.ArgumentParser()
    parser.add_argument("--accum-iter", type=int, default=2)
    parser.parse_args([])
    _accumulate(2)
    facts = trial.end()
    assert facts["options"] == {"grad_accumulation": "accum_iter"}
    assert "grad_accumulation" not in facts["left_out"]


# accumulation

LEARN = """
import torch, torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from support.torch_trials import begin

__all__ = ["begin"]
torch.manual_seed(0)
x, y = torch.randn(64, 5), torch.randn(64, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(1))
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
loss_of = nn.MSELoss(reduction=REDUCTION)
for epoch in range(2):
    for a, b in loader:
        CLEAR
        loss_of(model(a), b).backward()
        if CLIP:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        scheduler.step()
learned = [*model.weight[0].tolist(), model.bias.item(), optimizer.param_groups[0]["lr"]]
"""


def _learn(
    batch: int, reduction: str = "mean", clip: bool = False, clear: str = "optimizer.zero_grad()"
) -> list[float]:
    text = LEARN.replace("BATCH", str(batch)).replace("CLIP", str(clip)).replace("CLEAR", clear)
    text = text.replace("REDUCTION", repr(reduction)).replace("RATE", "0.1" if reduction == "mean" else "0.001")
    namespace: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec"), namespace)
    return list(namespace["learned"])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("clip", [True, False])
def test_accumulated_micro_batches_equal_the_whole_batch(begin: Begin, reduction: str, clip: bool) -> None:
    whole = _learn(16, reduction, clip)
    trial = begin({"batch_size": 4, "grad_accumulation": 4})
    split = _learn(16, reduction, clip)
    trial.end()
    assert trial.evidence("batch_size")[0] == trial.evidence("grad_accumulation")[0] == "verified"
    assert split[-1] == pytest.approx(whole[-1]), "the scheduler must move with whole steps"
    assert split == pytest.approx(whole, rel=1e-4, abs=1e-6)


def _accumulate(batches: int, losses: int = 1) -> None:
    """Trains on so many batches to a step, and on so many losses of each."""
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(96, 5), torch.randn(96, 1))
    for place, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=8)):
        for _ in range(losses):
            torch.nn.functional.mse_loss(model(x), y).backward()
        if place % batches == batches - 1:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(("batches", "losses"), [(2, 1), (1, 2), (3, 2)])
def test_accumulation_of_the_scripts_own_is_told(begin: Begin, batches: int, losses: int) -> None:
    """In batches: two losses of one batch make no more samples of it."""
    trial = begin()
    _accumulate(batches, losses)
    facts = trial.end()
    assert facts["as_written"]["grad_accumulation"] == batches
    assert "itself" in facts["left_out"]["grad_accumulation"]


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")
def test_an_implementation_that_the_optimizer_lacks_is_not_applicable(begin: Begin) -> None:
    trial = begin({"optimizer": "fused", "pin_memory": True})
    model = torch.nn.Linear(5, 1)
    _fit(model, torch.optim.Adadelta(model.parameters()), _data(shuffle=True))
    trial.end()
    assert trial.evidence("optimizer") == ("not applicable", "Adadelta has no fused implementation")
    if not torch.cuda.is_available():
        assert trial.evidence("pin_memory") == ("not applicable", "there is no GPU to pin batches for")


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_why_nothing_was_compiled_is_told(begin: Begin) -> None:
    """The compiler leaves recurrent networks alone."""
    trial = begin({"compile": "default"})
    model = torch.nn.LSTM(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(4, 5))[0].mean().backward()
        optimizer.step()
    trial.end()
    evidence, reason = trial.evidence("compile")
    assert evidence == "contradicted"
    assert reason.startswith("nothing was compiled: ")
    assert "LSTM" in reason


@pytest.mark.parametrize("ended_badly", [False, True])
def test_a_crash_is_not_told_as_a_knob_without_effect(begin: Begin, ended_badly: bool) -> None:
    """A contradiction would hide that memory ran out, or that a compilation failed."""
    trial = begin({"compile": "default"})
    _fit(*seeded_model(), [(torch.randn(4, 5), torch.randn(4, 1))])
    trial.session.ended_badly = ended_badly
    trial.end()
    assert trial.evidence("compile")[0] == ("unverifiable" if ended_badly else "contradicted")


def test_a_script_without_a_step_contradicts_nothing(begin: Begin) -> None:
    config = {"grad_accumulation": 2, "compile": "default", "precision": "bf16"}
    trial = begin(config)
    trial.end()
    assert {trial.evidence(knob)[0] for knob in config} == {"unverifiable"}
