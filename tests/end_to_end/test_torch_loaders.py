"""Loaders other than PyTorch's own on a plain dataset: torchdata's, chains of streams, batches made on a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["begin"]

TRAIN = """
    import torch
    from torch.utils.data import ChainDataset, DataLoader, IterableDataset, TensorDataset, get_worker_info
    torch.manual_seed(0)

    class Sharded(IterableDataset):
        def __init__(self, size=256):
            self.size = size

        def __iter__(self):
            worker = get_worker_info()
            first, apart = (worker.id, worker.num_workers) if worker else (0, 1)
            return ((torch.randn(8), torch.randn(1)) for _ in range(first, self.size, apart))

    class Repeated(IterableDataset):
        def __iter__(self):
            return iter([(torch.randn(8), torch.randn(1)) for _ in range(256)])

    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = MAKE
    for epoch in range(1000):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
"""
STATEFUL = TRAIN.replace(
    "MAKE", "StatefulDataLoader(TensorDataset(torch.randn(512, 8), torch.randn(512, 1)), batch_size=16, shuffle=True)"
).replace("torch.manual_seed(0)", "from torchdata.stateful_dataloader import StatefulDataLoader")


@pytest.fixture
def trained(write_script: Callable[..., Path], run_child: Callable[..., Any]) -> Callable[..., Any]:
    """A trial of a script's text."""

    def run(text: str, config: dict[str, Any] | None = None, **options: Any) -> Any:
        return run_child(write_script(text), config, **options)

    return run


def test_a_stateful_loader_is_counted_and_its_state_is_left_alone(trained: Callable[..., Any]) -> None:
    """What it saves hangs on its workers and its batch: a checkpoint of the script's must still load."""
    ran = trained(STATEFUL)
    facts = ran.facts
    assert facts["unit"] == "samples"
    assert facts["as_written"]["batch_size"] == 16
    assert {"num_workers", "batch_size"} <= facts["left_out"].keys()
    assert not {"prefetch_factor", "persistent_workers"} & facts["left_out"].keys()
    window = [block for block in ran.of("block") if block["phase"] == "window" and not block["flagged"]]
    assert all(block["samples"] == 16 * block["steps"] for block in window)


@pytest.mark.parametrize(
    ("parts", "refused"),
    [
        ("Sharded(10**9), Sharded()", ""),
        ("Sharded(10**9), Repeated()", "every worker would repeat the data"),
        pytest.param(
            "Sharded(), Sharded()", "its own share of the data, whose last ones are short or dropped",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_chain_is_given_workers_only_where_all_its_parts_share_them_out(
    trained: Callable[..., Any], parts: str, refused: str
) -> None:
    """And where its epochs are long: of each share the last batch is short, or dropped."""
    facts = trained(TRAIN.replace("MAKE", f"DataLoader(ChainDataset([{parts}]), batch_size=16)")).facts
    assert refused in facts["left_out"].get("num_workers", "")
    assert ("num_workers" in facts["left_out"]) is bool(refused)


PIPE = "IterableWrapper([(torch.ones(8), torch.ones(1))] * 256, deepcopy=False).shuffle()"


@pytest.mark.parametrize(
    "pipe", [PIPE, pytest.param(f"{PIPE}.sharding_filter()", marks=pytest.mark.slow)], ids=["plain", "filtered"]
)
def test_a_datapipe_is_given_no_workers(trained: Callable[..., Any], pipe: str) -> None:
    """Without a filter among them, which can't be seen from here, each worker would load all that there is."""
    text = TRAIN.replace("torch.manual_seed(0)", "from torch.utils.data.datapipes.iter import IterableWrapper")
    text = text.replace("MAKE", f"DataLoader({pipe}, batch_size=16)")
    facts = trained(text).facts
    assert facts["unit"] == "samples" and facts["as_written"]["batch_size"] == 16
    assert "num_workers" in facts["left_out"]
    held = trained(text, {"num_workers": 2, "prefetch_factor": 2})
    assert held.evidence("num_workers") == "not applicable"


def test_more_workers_than_cores_are_no_error_of_a_script_that_allows_no_warning(trained: Callable[..., Any]) -> None:
    """PyTorch suggests no more than there are cores: of a number that the script gives itself it still says so."""
    made = "DataLoader(TensorDataset(torch.randn(512, 8), torch.randn(512, 1)), batch_size=16, num_workers=WRITTEN)"
    strict = TRAIN.replace("import torch\n", "import torch, warnings\n", 1)
    strict = strict.replace("model =", "warnings.simplefilter('error')\n    model =", 1).replace("MAKE", made)
    many = len(os.sched_getaffinity(0)) + 2
    written = trained(strict.replace("WRITTEN", "0"))
    ran = trained(strict.replace("WRITTEN", "0"), {"num_workers": many}, knowledge=written.facts)
    assert ran.returncode == 0 and ran.evidence("num_workers") == "verified", ran.output
    own = trained(strict.replace("WRITTEN", str(many)))
    assert own.returncode == 1 and "This DataLoader will create" in own.output


def test_batches_that_are_on_a_device_are_not_pinned(trained: Callable[..., Any]) -> None:
    """A device that any machine has: tensors without data."""
    text = TRAIN.replace("MAKE", "[]") + (
        "    on_device = DataLoader(TensorDataset(torch.randn(64, 8, device='meta')), batch_size=16)\n"
        "    for epoch in range(100_000):\n"
        "        for (x,) in on_device:\n"
        "            optimizer.zero_grad()\n"
        "            model(torch.randn(16, 8)).sum().backward()\n"
        "            optimizer.step()\n"
    )
    assert "on the device already" in trained(text).facts["left_out"]["pin_memory"]


class _Samples:
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        return index


class _Table:
    """As a data frame: its keys are a method, its values an array."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.values = [[float(row)] for row in rows]

    def keys(self) -> list[str]:
        return ["row"]


class _Batches:
    """A batch sampler of the script's own, which gives what ``make`` makes of some indices."""

    batch_size = 8

    def __init__(self, make: Callable[[list[int]], Any]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return (self.make(list(range(start, min(60, start + 8)))) for start in range(0, 60, 8))


@pytest.mark.parametrize("make", [list, tuple, torch.tensor, lambda rows: range(rows[0], rows[-1] + 1)])
def test_batches_of_any_class_are_counted_as_their_sampler_says(begin: Callable[..., Any], make: Any) -> None:
    trial = begin()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    sampler: Any = _Batches(make)
    samples: Any = _Samples()
    for table in DataLoader(samples, batch_sampler=sampler, collate_fn=_Table):
        optimizer.zero_grad()
        model(torch.tensor(table.values)).square().mean().backward()
        optimizer.step()
    assert (trial.steps, trial.samples) == (8, 60)


class _ReadyBatches:
    """A dataset each of whose items is a whole batch, the last one a short one; ``first`` passes it on."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = 32 if index < 4 else 20
        return torch.zeros(rows, 3), torch.zeros(rows, 1)

    @staticmethod
    def first(items: Sequence[Any]) -> Any:
        return items[0]


def test_rows_of_batches_that_a_dataset_makes_are_counted(begin: Callable[..., Any]) -> None:
    """The script's ``collate_fn`` drops all items but one: a loader's larger batch would train on nothing more."""
    trial = begin()
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ready: Any = _ReadyBatches()
    for x, y in DataLoader(ready, batch_size=1, collate_fn=_ReadyBatches.first):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    assert (trial.steps, trial.samples) == (5, 4 * 32 + 20)
    trial.adapter.observe()
    assert "batch_size" in trial.session.facts.left_out
    assert "num_workers" not in trial.session.facts.left_out


ROLLOUTS = """
    import random, torch
    from torch.utils.data import DataLoader, TensorDataset
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    held_out = TensorDataset(torch.rand(64, 4))
    for _ in range(8):
        rollout = TensorDataset(torch.rand(LENGTH, 4))
        for train, data in ((True, rollout), (False, held_out)):
            for x, in DataLoader(data, batch_size=8, shuffle=True):
                with torch.set_grad_enabled(train):
                    loss = model(x).square().mean()
                if train:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
"""
ALL_OF_IT = {"min_s": 60.0, "max_s": 60.0}
"""A window that ends with the script, which has as many loaders on any machine."""


@pytest.mark.parametrize(
    ("length", "unit"),
    [("random.randrange(100, 300)", "steps"), pytest.param("256", "samples", marks=pytest.mark.slow)],
)
def test_loaders_of_ever_other_lengths_are_counted_in_steps(
    trained: Callable[..., Any], length: str, unit: str
) -> None:
    """Which is which isn't seen: those of one length were the training, and all others counted for nothing."""
    facts = trained(ROLLOUTS.replace("LENGTH", length), window=ALL_OF_IT).facts
    assert facts["unit"] == unit
    assert ("num_workers" in facts["left_out"]) is (unit == "steps")


def test_samples_that_cannot_be_counted_as_the_baselines_were_are_no_figure(trained: Callable[..., Any]) -> None:
    """Its window saw fewer loaders than the config's, which is faster."""
    text = ROLLOUTS.replace("LENGTH", "random.randrange(100, 300)")
    ran = trained(text, {"precision": "bf16"}, knowledge={"unit": "samples"}, window=ALL_OF_IT)
    (failure,) = ran.of("failure")
    assert failure["reason"] == "unsupported" and "none of them stands for the others" in failure["detail"]


def train_and_validate(held_out: int, epochs: int, *, within: bool) -> None:
    """On loaders that are made at one place; ``within``: an epoch is interrupted by validation, too."""
    lengths = {"train": 320, "val": held_out, "test": held_out - 8}
    data = {name: TensorDataset(torch.rand(length, 4)) for name, length in lengths.items()}
    loaders = {name: DataLoader(each, 64, shuffle=name == "train") for name, each in data.items()}
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        for name in ("val", "test"):
            for (y,) in loaders[name]:
                model(y)
        for step, (x,) in enumerate(loaders["train"]):
            for (y,) in loaders[("val", "test")[epoch % 2]] if within and step == 2 else ():
                model(y)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


@pytest.mark.parametrize(("held_out", "within"), [(60, False), (120, False), (60, True)])
def test_short_validation_is_no_training_in_turn(begin: Callable[..., Any], held_out: int, within: bool) -> None:
    """Each of its few batches lies in the gap before a gradient, as a training batch does, in however many epochs."""
    facts: list[dict[str, Any]] = []
    for epochs in (1, 20):
        known = {key: facts[0][key] for key in ("training_loaders", "unit")} if facts else {}
        trial = begin({}, **known)
        train_and_validate(held_out, epochs, within=within)
        facts.append(trial.end())
        assert not trial.log.of("failure")
        assert facts[-1]["unit"] == "samples" and "num_workers" not in facts[-1]["left_out"]


def test_why_samples_are_not_counted_is_true_of_loaders_of_one_length(begin: Callable[..., Any]) -> None:
    trial = begin()
    clients = [DataLoader(TensorDataset(torch.rand(64, 4)), batch_size=8, shuffle=True) for _ in range(4)]
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in (0, 2, 1, 3, 0):
        for (x,) in clients[number]:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    facts = trial.end()
    assert facts["unit"] == "steps"
    assert facts["left_out"]["num_workers"] == (
        "the script trains in turn on loaders that it makes at one place, and none of them stands for the others"
    )


@pytest.mark.parametrize(("size", "left_out"), [(28, True), (4, False)])
def test_loaders_of_batches_that_differ_in_size_keep_them(
    begin: Callable[..., Any], size: int, *, left_out: bool
) -> None:
    """As labelled and unlabelled samples do: one number for both would train on other shares of each."""
    trial = begin()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labelled = DataLoader(TensorDataset(torch.rand(400, 4)), batch_size=4, shuffle=True)
    unlabelled = DataLoader(TensorDataset(torch.rand(2800, 4)), batch_size=size, shuffle=True)
    for (x,), (u,) in zip(labelled, unlabelled, strict=False):
        optimizer.zero_grad()
        model(torch.cat([x, u])).square().mean().backward()
        optimizer.step()
    facts = trial.end()
    assert facts["as_written"]["num_workers"] == 0
    assert ("batch_size" in facts["left_out"]) is left_out
    told = "loaders with batches of 4 and 28 feed the training"
    assert facts["left_out"].get("batch_size", f"{told} together") == f"{told} together"
    assert [text for text in facts["remarks"] if told in text] == [f"{told}: samples are those of 28"] * left_out


FUNCTIONAL = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    model = torch.nn.Linear(8, 2)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    def loss_of(weights, x, y):
        return torch.nn.functional.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)
    loader = DataLoader(TensorDataset(torch.randn(600, 8), torch.randint(0, 2, (600,))), batch_size=2)
    for x, y in loader:
        found = torch.func.grad(loss_of)(weights, x, y)
        weights = {name: value - 0.1 * found[name] for name, value in weights.items()}
"""


def test_a_loop_whose_gradients_are_unseen_tells_of_its_batches(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    run = run_child(write_script(FUNCTIONAL))
    told = run.of("unstepped")
    assert [each["batches"] for each in told if not each["gradients"]] == [128, 256]
    assert [each["gradients"] for each in told if each["gradients"]] == [128, 256]
    assert not run.of("first_step")


OTHER_TASK = """
    import time, torch
    from torch.utils.data import DataLoader, TensorDataset
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 400
        def __getitem__(self, index):
            time.sleep(0.01)
            return torch.randn(8)
    rows = TensorDataset(torch.randn(640, 8), torch.randint(0, 2, (640,)))
    loader, other = DataLoader(rows, batch_size=8), iter(DataLoader(Slow(), batch_size=8))
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        if step % 8 == 7:
            loss = loss + model(next(other)).var()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_what_another_task_s_batches_take_is_in_the_rate(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """It was taken for validation, which no rate holds: 3,163 samples/s were told of a loop that made 1,270."""
    run = run_child(write_script(OTHER_TASK))
    blocks = run.of("block")
    assert not any(told["flagged"] for told in blocks)
    seconds, steps = (sum(told[name] for told in blocks) for name in ("seconds", "steps"))
    assert seconds / steps > 0.007, "eight of its samples to eight steps, each of which takes ten milliseconds"


def test_a_batch_that_is_looked_at_without_gradients_is_validation(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """Without ``eval()``, too, as in scripts whose models need none."""
    at, look = "        if step % 8 == 7:\n", "        with torch.no_grad():\n                model(next(other))\n"
    text = OTHER_TASK.replace(at, "        if False:\n").rstrip(" ") + at + "    " + look
    blocks = run_child(write_script(text)).of("block")
    assert any(told["flagged"] for told in blocks)
    of_steps = [told for told in blocks if not told["flagged"]]
    assert sum(told["seconds"] for told in of_steps) / sum(told["steps"] for told in of_steps) < 0.007
