"""Loops of reinforcement learning: their rollouts are training, what their models are validated on isn't."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch.utils.data import DataLoader, TensorDataset

from tuner.child.torch import rollouts

__all__ = ["begin"]

ROLLOUT, BATCH = 64, 16


class Policy(torch.nn.Module):  # type: ignore[misc]
    """As Stable-Baselines3 has one: asked as a whole, and trained part by part, on pixels as fractions."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(12, 8), torch.nn.Linear(8, 2)

    def forward(self, seen: Any) -> Any:
        return self.head(self.body(seen.float() / 255))


def _train(policy: Any, optimizer: Any, seen: Any) -> None:
    policy.train()
    for rows in (seen.float() / 255).split(BATCH):
        optimizer.zero_grad()
        policy.head(policy.body(rows)).square().mean().backward()
        optimizer.step()


def _roll(policy: Any) -> Any:
    seen = [torch.randint(0, 256, (1, 12), dtype=torch.uint8) for _ in range(ROLLOUT)]
    for one in seen:
        policy(one)
    policy.head(policy.body(seen[-1].float() / 255))  # the value of where it ended
    return torch.cat(seen)


def _flagged(begin: Callable[..., Any], look: Callable[[Any], Any], cycles: int = 4) -> list[bool]:
    """Trains on what ``look`` gives in each cycle; which blocks were set apart."""
    torch.manual_seed(0)
    trial = begin()
    policy = Policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    for _ in range(cycles):
        with torch.no_grad():
            seen = look(policy.eval())
        _train(policy, optimizer, seen)
    trial.end()
    blocks = trial.log.of("block")
    assert sum(block["steps"] for block in blocks) == cycles * ROLLOUT // BATCH - 1
    return [block["flagged"] for block in blocks]


def test_what_a_policy_is_asked_and_then_trained_on_is_a_rollout(begin: Callable[..., Any]) -> None:
    """It was taken for validation: 36 steps/s were told of a loop that made 16."""
    assert not any(_flagged(begin, _roll))


def test_of_large_pictures_the_first_of_a_batch_are_looked_at(
    begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 observations of an Atari game hold more numbers than are looked at, and so weren't at all."""
    monkeypatch.setattr(rollouts, "MOST_NUMBERS", BATCH * 12 // 2)
    assert not any(_flagged(begin, _roll))


def test_a_target_network_that_is_asked_about_whole_batches_is_none(begin: Callable[..., Any]) -> None:
    """What it is asked about is what comes after that which is trained on, and is trained on as well."""
    trial = begin()
    policy, target = Policy(), Policy().eval()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    buffer = torch.randint(0, 256, (ROLLOUT, 12), dtype=torch.uint8)
    for step in range(40):
        with torch.no_grad():
            for row in range(step, step + 12 if step % 10 == 9 else step):  # every so often it acts
                buffer[row] = torch.randint(0, 256, (12,))
                policy.eval()(buffer[row : row + 1])
            target(buffer[torch.randperm(ROLLOUT - 1)[:BATCH] + 1])
        _train(policy, optimizer, buffer[torch.randperm(ROLLOUT - 1)[:BATCH]])
    trial.end()
    flagged = [block["flagged"] for block in trial.log.of("block")]
    assert sum(flagged) <= 1, "twelve rows are enough to see that the policy acts"


@pytest.mark.parametrize("at_a_time", [1, BATCH])
def test_what_is_validated_on_is_set_apart(begin: Callable[..., Any], at_a_time: int) -> None:
    """Held-out rows, by batches of the script's own."""
    held_out, data = (torch.randint(0, 256, (ROLLOUT, 12), dtype=torch.uint8) for _ in range(2))

    def validate(policy: Any) -> Any:
        for rows in held_out.split(at_a_time):
            policy(rows)
        return data

    assert sum(_flagged(begin, validate)) == 3, "what comes before the first step is start-up"


@pytest.mark.parametrize("first", [False, True])
def test_a_look_at_what_is_trained_on_anyway_is_no_rollout(begin: Callable[..., Any], first: bool) -> None:
    """The training data themselves, row by row once they were trained on, or in whole batches from the start."""
    data = torch.randint(0, 256, (ROLLOUT, 12), dtype=torch.uint8)
    looked = False

    def validate(policy: Any) -> Any:
        nonlocal looked
        for rows in data.split(BATCH if first else 1) if first or looked else ():
            policy(rows)
        looked = True
        return data

    assert sum(_flagged(begin, validate)) == 3


def test_looks_take_no_time_worth_speaking_of(begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows at once, and some that are held out after each step: 512 looks took 20 ms each, and steps 3 ms."""
    now = iter(range(10_000))
    monkeypatch.setattr(rollouts, "perf_counter", lambda: next(now) * rollouts.MOST_S / 4)
    looks: list[Any] = []
    rows_of = rollouts.RolloutWatch._rows

    def noted(watch: rollouts.RolloutWatch, rows: Any) -> list[str]:
        looks.append(rows)
        return rows_of(watch, rows)

    monkeypatch.setattr(rollouts.RolloutWatch, "_rows", noted)
    data, held_out = torch.rand(ROLLOUT, 12), torch.rand(BATCH, 12)
    begin()
    policy = Policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    for _ in range(40):
        policy.train()(data).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            policy.eval()(held_out)
    assert sum(len(rows) == ROLLOUT for rows in looks) == 4


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
def test_what_has_no_such_numbers_is_not_looked_at() -> None:
    watch = rollouts.RolloutWatch(torch)
    for tensor in (torch.quantize_per_tensor(torch.rand(4, 3), 0.1, 0, torch.quint8), torch.rand(4, 3, device="meta")):
        watch.trains_on((tensor,))


@pytest.mark.parametrize("epochs", [1, 2])
def test_what_a_fold_is_validated_on_is_set_apart_though_another_one_trains_on_it(
    begin: Callable[..., Any], epochs: int
) -> None:
    """One model goes through the folds: as of the second one, validation passed for a rollout."""
    torch.manual_seed(0)
    folds = torch.randint(0, 256, (3, ROLLOUT, 12), dtype=torch.uint8)
    trial = begin()
    policy = Policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    for held_out in range(3):
        data = torch.cat([fold for number, fold in enumerate(folds) if number != held_out])
        for _ in range(epochs):
            _train(policy, optimizer, data[torch.randperm(len(data))])
            with torch.no_grad():
                for rows in folds[held_out].split(BATCH // 4):
                    policy.eval()(rows)
    trial.end()
    flagged = [block["flagged"] for block in trial.log.of("block")]
    assert sum(flagged) == 3 * epochs


def test_so_it_is_where_a_part_of_a_fold_was_scored_before_the_first_step(begin: Callable[..., Any]) -> None:
    """As trainers do to see that it works. What came later passed for a rollout, as if training had begun with it."""
    torch.manual_seed(0)
    folds = torch.rand(3, ROLLOUT, 12)
    trial = begin()
    model = torch.nn.Linear(12, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def score(held_out: Any) -> None:
        with torch.no_grad():
            for rows in held_out.split(BATCH // 4):
                model.eval()(rows)

    score(folds[0][:BATCH])
    for held_out in range(3):
        for rows in torch.cat([fold for number, fold in enumerate(folds) if number != held_out]).split(BATCH):
            optimizer.zero_grad()
            model.train()(rows).square().mean().backward()
            optimizer.step()
        score(folds[held_out])
    trial.end()
    assert sum(block["flagged"] for block in trial.log.of("block")) == 3


def _flagged_late(begin: Callable[..., Any], look: Callable[[Any, Any], Any]) -> list[bool]:
    """Imitates for longer than rollouts are usually waited for, then goes on with what it looked at in between."""
    torch.manual_seed(0)
    trial = begin()
    policy, shown = Policy(), torch.randint(0, 256, (4 * ROLLOUT, 12), dtype=torch.uint8)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    for _ in range(1 + rollouts.EARLY // (4 * ROLLOUT // BATCH)):
        _train(policy, optimizer, shown)
    for _ in range(4):
        with torch.no_grad():
            seen = look(policy.eval(), shown)
        _train(policy, optimizer, torch.cat((seen, shown[:ROLLOUT])))
    trial.end()
    return [block["flagged"] for block in trial.log.of("block")]


def test_who_imitates_first_rolls_out_as_well(begin: Callable[..., Any]) -> None:
    """As DAgger does: all of its rollouts were set apart, and its rate was that of its training alone."""
    assert sum(_flagged_late(begin, lambda policy, shown: _roll(policy))) == 1, "the first one shows it"


def test_a_late_look_at_what_is_trained_on_is_no_rollout(begin: Callable[..., Any]) -> None:
    """Row by row, at some of the training data: not all of them were seen by then."""

    def look(policy: Any, shown: Any) -> Any:
        for row in shown[torch.randperm(len(shown))[:ROLLOUT]].split(1):
            policy(row)
        return shown[:ROLLOUT]

    assert sum(_flagged_late(begin, look)) == 4


@pytest.mark.parametrize("rows", [16, 64])
def test_so_it_is_in_train_mode_where_a_loader_deals_a_rollout_out(begin: Callable[..., Any], rows: int) -> None:
    """Another DataLoader over each rollout, whose ``rows`` one call takes: as of the second one it is a part."""
    torch.manual_seed(0)
    trial, policy = begin(), torch.nn.Linear(12, 2)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    for _ in range(6):
        seen = torch.rand(256, 12)
        with torch.no_grad():
            for some in seen.split(rows):
                policy(some)
        for (batch,) in DataLoader(TensorDataset(seen), batch_size=32, shuffle=True):
            optimizer.zero_grad()
            policy(batch).square().mean().backward()
            optimizer.step()
    trial.end()
    assert (trial.steps, trial.samples) == (48, 48 * 32) and trial.set_apart() <= 1


@pytest.mark.parametrize(("in_eval", "epochs"), [(False, 1), (True, 1), (True, 3)])
def test_rows_may_be_whitened_before_they_are_trained_on(
    begin: Callable[..., Any], in_eval: bool, epochs: int
) -> None:
    """Nothing of them came again, and all rollouts but the first were set apart; then those of several epochs each."""
    torch.manual_seed(0)
    trial, policy = begin(), torch.nn.Linear(12, 2)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    for _ in range(6):
        seen = torch.rand(256, 12)
        policy.train(not in_eval)
        with torch.no_grad():
            for some in seen.split(16):
                policy(some)
        policy.train()
        loader = DataLoader(TensorDataset((seen - seen.mean(0)) / seen.std(0)), batch_size=32, shuffle=True)
        for (batch,) in itertools.chain.from_iterable(itertools.repeat(loader, epochs)):
            optimizer.zero_grad()
            policy(batch).square().mean().backward()
            optimizer.step()
    trial.end()
    assert (trial.steps, trial.samples) == (48 * epochs, 48 * 32 * epochs) and trial.set_apart() <= 1


@pytest.mark.parametrize("by_loader", [False, True])
def test_so_are_not_the_training_data_though_each_epoch_has_a_loader_of_its_own(
    begin: Callable[..., Any], by_loader: bool
) -> None:
    """Its accuracy on all of them, in one call or by that loader: of as many rows as the next loader gives."""
    trial, model, data = begin(), torch.nn.Linear(12, 2), torch.rand(256, 12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        loader = DataLoader(TensorDataset(data), batch_size=32, shuffle=True)
        for (batch,) in loader:
            optimizer.zero_grad()
            model.train()(batch).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            for (batch,) in loader if by_loader else [(data,)]:
                model.eval()(batch)
    trial.end()
    assert trial.set_apart() == 6


class Writer(torch.nn.Module):  # type: ignore[misc]
    """A language model, which may be given its newest token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50)

    def forward(self, tokens: Any, known: Any = 0) -> Any:
        return self.head(self.words(tokens).cumsum(1) + known)

    def write(self, tokens: Any, *, newest_alone: bool = False) -> Any:
        """So many rows, with ten tokens more."""
        with torch.no_grad():
            for _ in range(10):
                given = self(tokens[:, -1:]) if newest_alone else self(tokens)
                tokens = torch.cat((tokens, torch.multinomial(given[:, -1].softmax(-1), 1)), 1)
        return tokens


def _written(begin: Callable[..., Any], each: int, steps: int = 1, *, is_trained_on: bool = True, **how: bool) -> Any:
    """The trial of a loop that writes before each so-and-so-many-th batch's steps."""
    torch.manual_seed(0)
    trial, model, older = begin(), Writer(), Writer().eval().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (batch,) in enumerate(DataLoader(TensorDataset(torch.randint(0, 50, (256, 6))), batch_size=8)):
        if number % each == 0:
            written = model.eval().write(batch if is_trained_on else torch.zeros(1, 1, dtype=torch.int64), **how)
            with torch.no_grad():
                older(written)
            model.train()
        for _ in range(steps):
            optimizer.zero_grad()
            model(written if is_trained_on else batch).square().mean().backward()
            optimizer.step()
    trial.end()
    assert (trial.steps, trial.samples) == (32 * steps, 256)
    return trial


@pytest.mark.parametrize("steps", [1, 4])
def test_what_a_model_writes_before_the_steps_on_each_batch_is_a_part_of_them(
    begin: Callable[..., Any], steps: int
) -> None:
    """As in GRPO and PPO: with four steps to a batch of prompts all was set apart but the first of it."""
    assert _written(begin, 1, steps).set_apart() <= 1


@pytest.mark.parametrize("newest_alone", [False, True])
def test_so_is_what_it_writes_for_several_batches_and_is_trained_on(
    begin: Callable[..., Any], newest_alone: bool
) -> None:
    """As TRL buffers it. Its tokens come again, behind those that were given."""
    assert _written(begin, 4, newest_alone=newest_alone).set_apart() == 0


def test_what_it_writes_to_be_read_is_set_apart(begin: Callable[..., Any]) -> None:
    assert _written(begin, 4, is_trained_on=False).set_apart() == 7


def test_each_batch_may_be_validated_on_once_its_steps_are_taken(begin: Callable[..., Any]) -> None:
    """As where a model is fitted to each of several tasks."""
    trial, model, held_out = begin(), torch.nn.Linear(12, 2), torch.rand(BATCH, 12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (batch,) in DataLoader(TensorDataset(torch.rand(64, 12)), batch_size=8):
        for _ in range(4):
            optimizer.zero_grad()
            model.train()(batch).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            model.eval()(held_out)
    trial.end()
    assert trial.set_apart() == 8
