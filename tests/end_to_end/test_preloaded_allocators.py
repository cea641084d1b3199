"""Another allocator for a trial and under ``autotune run``: seen in the process by where its memory comes from."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuner.child import allocator
from tuner.devices import allocators
from tuner.devices.cpu import cpu_device
from tuner.knowledge import Knowledge
from tuner.model import Config, Script
from tuner.runner import fork_servers, launch
from tuner.runner.request import TrialRequest

pytestmark = pytest.mark.timeout(300)
STAND_IN = """
#include <stddef.h>
extern void *__libc_malloc(size_t);
void *malloc(size_t size) { return __libc_malloc(size); }
"""
TRAIN = textwrap.dedent("""
    import sys
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
    for epoch in range(int(sys.argv[1])):
        for x, y in DataLoader(data, batch_size=8):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
""")

FIT = textwrap.dedent("""
    import sys
    import keras, numpy
    model = keras.Sequential([keras.layers.Input([8]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = numpy.random.default_rng(0).random((256, 8), dtype="float32")
    model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=int(sys.argv[1]), verbose=0)
""")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one that is called jemalloc, and asks the C library for all that it gives."""
    folder = tmp_path_factory.mktemp("allocators")
    source = folder / "malloc.c"
    source.write_text(STAND_IN)
    target = folder / "libjemalloc.so.2"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(target), str(source)], check=True)
    return folder


@pytest.fixture
def preloaded(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the parent starts a trial with the knob."""
    given = allocators.environment("jemalloc", {}, [library])
    for name, value in given.items():
        monkeypatch.setenv(name, value)


Run = Callable[..., Any]
Write = Callable[..., Path]


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize("text", [TRAIN, FIT], ids=["PyTorch", "Keras"])
def test_the_allocator_that_a_process_begins_with_is_verified(write_script: Write, run_child: Run, text: str) -> None:
    trial = run_child(write_script(text), {"allocator": "jemalloc"}, argv=("100000",), fresh=True)
    assert trial.evidence("allocator") == "verified", trial.of("knob")
    assert trial.facts["as_written"]["allocator"] == "jemalloc"


def test_one_that_is_not_installed_is_contradicted(write_script: Write, run_child: Run) -> None:
    trial = run_child(write_script(TRAIN), {"allocator": "jemalloc"}, argv=("100000",), fresh=True)
    assert trial.evidence("allocator") == "contradicted"
    [report] = trial.of("knob")
    assert report["reason"] == f"system is in use: {allocator.NOT_LOADED}"
    assert trial.facts["as_written"]["allocator"] == "system"


@pytest.mark.parametrize("there", [True, False])
def test_an_applied_run_says_whether_it_began_with_it(
    write_script: Write, run_child: Run, request: pytest.FixtureRequest, *, there: bool
) -> None:
    if there:
        request.getfixturevalue("preloaded")
    ran = run_child(write_script(TRAIN), {"allocator": "jemalloc"}, mode="apply", argv=("2",))
    assert ran.returncode == 0, ran.output
    assert ("NOT in effect: allocator" not in ran.output) is there
    assert "in effect: allocator" in ran.output


def test_the_parent_starts_a_trial_with_it_and_never_from_a_fork_server(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    config = Config(allocator="jemalloc")
    shown = launch.device_environment(cpu_device(), config)
    assert shown["LD_PRELOAD"] == str(library / "libjemalloc.so.2")
    assert "LD_PRELOAD" not in launch.device_environment(cpu_device(), Config(allocator="system"))
    assert "LD_PRELOAD" not in launch.device_environment(cpu_device(), Config())
    known = Knowledge(framework="torch")
    asked = {"script": Script("train.py", ()), "device": cpu_device(), "knowledge": known, "folder": tmp_path}
    plain, other = (TrialRequest(config=each, **asked) for each in (Config(), config))  # type: ignore[arg-type]  # by names
    assert fork_servers.may_fork(plain)
    assert not fork_servers.may_fork(other)
