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

STARTS = textwrap.dedent("""
    import multiprocessing, os, subprocess, sys, threading
    import torch
    from torch.utils.data import DataLoader, Dataset

    def in_use():
        with open("/proc/self/maps") as lines:
            return any("libjemalloc" in line for line in lines)

    TELL = "import os; print(os.environ.get('LD_PRELOAD'), 'libjemalloc' in open('/proc/self/maps').read())"

    def told():
        return subprocess.run([sys.executable, "-c", TELL], capture_output=True, text=True).stdout.strip()

    class Data(Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, index):
            if index == 0:
                where = torch.utils.data.get_worker_info() is not None
                print("=> loader", where, in_use(), os.environ.get("LD_PRELOAD"), told(), flush=True)
            return torch.full((8,), float(index)), torch.zeros(1)

    def rank(index):
        print("=> rank", in_use(), os.environ.get("LD_PRELOAD"), told(), flush=True)

    if __name__ == "__main__":
        print("=> script", in_use(), os.environ.get("LD_PRELOAD"), told(), flush=True)
        os.system("echo '=> shell '$LD_PRELOAD")
        print("=> names", sorted(name for name in os.environ if name.startswith("AUTOTUNE")), flush=True)
        for method in ("spawn", "forkserver", "fork"):
            worker = multiprocessing.get_context(method).Process(target=rank, args=(0,), daemon=True)
            worker.start()
            worker.join()
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for x, y in DataLoader(Data(), batch_size=8, num_workers=1, multiprocessing_context="spawn"):
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


@pytest.mark.slow  # 10 s beside three others
@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize("text", [TRAIN, pytest.param(FIT, marks=pytest.mark.slow)], ids=["PyTorch", "Keras"])
def test_the_allocator_that_a_process_begins_with_is_verified(write_script: Write, run_child: Run, text: str) -> None:
    trial = run_child(write_script(text), {"allocator": "jemalloc"}, argv=("100000",), fresh=True)
    assert trial.evidence("allocator") == "verified", trial.of("knob")
    assert trial.facts["as_written"]["allocator"] == "jemalloc"


@pytest.mark.slow
def test_one_that_is_not_installed_is_contradicted(write_script: Write, run_child: Run) -> None:
    trial = run_child(write_script(TRAIN), {"allocator": "jemalloc"}, argv=("100000",), fresh=True)
    assert trial.evidence("allocator") == "contradicted"
    [report] = trial.of("knob")
    assert report["reason"] == f"system is in use: {allocator.NOT_LOADED}"
    assert trial.facts["as_written"]["allocator"] == "system"


@pytest.mark.slow
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


@pytest.fixture
def in_child(write_script: Write, run_child: Run) -> tuple[Write, Run]:
    return write_script, run_child


@pytest.mark.slow
@pytest.mark.parametrize("users", ["libm.so.6", ""])
@pytest.mark.parametrize("mode", ["apply", "trial"])
def test_what_the_script_starts_has_the_users_environment(
    in_child: tuple[Write, Run], library: Path, monkeypatch: pytest.MonkeyPatch, mode: str, users: str
) -> None:
    """The workers that multiprocessing starts are the training's own: they have the allocator, as forked ones do."""
    write_script, run_child = in_child
    given = {"LD_PRELOAD": users} if users else {}
    for name, value in {**given, **allocators.environment("jemalloc", given, [library])}.items():
        monkeypatch.setenv(name, value)
    ran = run_child(write_script(STARTS), {"allocator": "jemalloc"}, mode=mode, fresh=True)
    assert ran.returncode == 0, ran.output
    told = [line.split(" ", 2)[1:] for line in f"{ran.output} ".splitlines() if line.startswith("=> ")]
    seen = f"True {users or None} {users or None} False"
    assert [rest for what, rest in told if what == "script"] == [seen]
    assert [rest for what, rest in told if what == "rank"] == [seen] * 3
    assert {rest for what, rest in told if what == "loader"} == {f"True {seen}"}
    assert [rest for what, rest in told if what == "shell"] == [users]
    assert [rest for what, rest in told if what == "names"] == ["[]"]


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
