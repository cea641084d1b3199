"""Real scripts by turns: they train as they do alone, on the same samples, and nothing of them meets in their files."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tuner.child.records import Block, Phase, Window
from tuner.devices.cpu import cpu_device
from tuner.model import Config, Outcome, Script, Value
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest
from tuner.storage.records import read_records

Write = Callable[..., Path]
SHORT = Window(warmup_steps=3, warmup_s=0.1, block_s=0.05, max_s=0.6)
LOADER = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(4096, 8), torch.randn(4096, 1))
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(10_000):
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            print(float(loss).hex())
"""
KERAS = """
    import numpy, keras
    keras.utils.set_random_seed(3)
    x, y = numpy.random.rand(4096, 8).astype("float32"), numpy.random.rand(4096, 1).astype("float32")
    model = keras.Sequential([keras.layers.Dense(64), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    shows = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: print(float(logs["loss"]).hex()))
    model.fit(x, y, batch_size=32, epochs=10_000, verbose=0, callbacks=[shows])
"""


def requests_for(
    folder: Path, path: Path, configs: Sequence[Mapping[str, Value]], seed: int | None
) -> list[TrialRequest]:
    script = Script(str(path), ())
    return [
        TrialRequest(folder / f"{number:04d}", script, cpu_device(), Config(config), window=SHORT, seed=seed)
        for number, config in enumerate(configs)
    ]


def by_turns(folder: Path, script: Path, *configs: Mapping[str, Value], seed: int | None = None) -> list[Outcome]:
    return list(ProcessRunner().run_by_turns(requests_for(folder, script, configs, seed), threading.Event()).outcomes)


def losses(trial: Path) -> list[str]:
    """Those that the script printed, one a step."""
    return [line for line in (trial / "log.txt").read_text().splitlines() if line.startswith("0x1.")]


def window(trial: Path) -> list[tuple[float, Block]]:
    """The moment at which each block of the window ended, and the block."""
    entries = read_records(trial / "records.jsonl")
    return [(e.t, e.record) for e in entries if isinstance(e.record, Block) and e.record.phase is Phase.WINDOW]


@pytest.mark.slow  # that turns are kept: faults/test_trials_by_turns.py
@pytest.mark.parametrize("text", [LOADER, KERAS], ids=["torch", "keras"])
def test_what_is_held_between_two_steps_trains_as_it_does_alone(tmp_path: Path, write_script: Write, text: str) -> None:
    """Bit for bit, on one seed; and never in the turn of another one."""
    script = write_script(text)
    (request,) = requests_for(tmp_path / "alone", script, [{}], 5)
    alone = ProcessRunner().run(request, threading.Event())
    outcomes = by_turns(tmp_path / "turns", script, {}, {}, seed=5)
    assert alone.complete and all(outcome.complete for outcome in outcomes), [o.detail for o in outcomes]
    trials = [tmp_path / "turns" / f"000{number}" for number in range(2)]
    expected = losses(tmp_path / "alone" / "0000")
    for trial in trials:
        held = losses(trial)
        both = min(len(held), len(expected))
        assert both > 50 and held[:both] == expected[:both]
    spans = sorted((t - block.seconds, t) for trial in trials for t, block in window(trial))
    overlaps = [later[0] - before[1] for before, later in itertools.pairwise(spans)]
    assert min(overlaps) > -0.005, "a block is sent just after it has ended"
    turns = sorted(block.turn for trial in trials for _, block in window(trial))
    assert turns == list(range(1, len(turns) + 1)), "each turn is one trial's"


FILES = """
    import os, sys, torch
    os.mkdir("run")  # fails where another one has made it
    assert not os.path.exists("last.pt"), "the checkpoint of another training"
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.save(model.state_dict(), "last.pt")
    for step in range(100_000):
        optimizer.zero_grad()
        model(torch.ones(4, 4)).sum().backward()
        optimizer.step()
        if step % 50 == 0:
            with open(f"run/{step}.txt", "x") as log:
                log.write(str(step))
            torch.load("last.pt")
"""


@pytest.mark.slow  # faults/test_created_files.py
def test_what_one_has_made_is_not_there_for_the_others(
    tmp_path: Path, write_script: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    script = write_script(FILES)
    outcomes = by_turns(tmp_path / "trials", script, {}, {})
    assert all(outcome.complete for outcome in outcomes), [(o.detail, o.traceback_text) for o in outcomes]
    assert list(home.iterdir()) == []


PORT = """
    import socket, time, tuner
    place = socket.create_server(("127.0.0.1", NUMBER))
    for step in range(1, 100_000):
        time.sleep(0.002)
        tuner.report(step=step, samples=4 * step)
"""


def test_a_script_that_can_be_alive_once_only_is_told_apart(tmp_path: Path, write_script: Write) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    script = write_script(PORT.replace("NUMBER", str(number)))
    first, second = by_turns(tmp_path, script, {}, {"threads": 1})
    assert first.complete and not second.complete
    assert "Address already in use" in second.traceback_text
