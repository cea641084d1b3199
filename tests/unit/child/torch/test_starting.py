"""Whether workers may be started anew: by where the script trains, by what it does when it is imported, by its data."""

from __future__ import annotations

import linecache
import multiprocessing
import os
import resource
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from support.own_loaders import TWO, Numbers, Script, script
from support.torch_trials import begin
from torch.utils.data import DataLoader

from tuner.child.torch import starting
from tuner.child.torch.starting import UNGUARDED, WORKERS, refusals, said_to_fork, start_anew

__all__ = ["begin", "script"]


def why(folder: Path, text: str, given: dict[str, Any] | None = None) -> str:
    """Of a script that makes its loader where it calls ``made``."""
    found: list[dict[str, str]] = []
    path = folder / "train.py"
    path.write_text(text)
    starting._guards.cache_clear()
    linecache.clearcache()
    names = {"__name__": "__main__", "made": lambda: found.append(refusals(given or {}))}
    exec(compile(text, str(path), "exec"), names)
    assert found[0] == {} or set(found[0]) == set(WORKERS)
    return found[0].get("num_workers", "")


def test_a_training_behind_the_usual_condition_is_no_part_of_an_import(tmp_path: Path) -> None:
    text = '"""Trains."""\nimport os\nSIZE = 8\nos.environ.setdefault("A", "1")\ndef main():\n    made()\n'
    assert why(tmp_path, f'{text}if __name__ == "__main__":\n    main()\n') == ""
    assert why(tmp_path, f'{text}if "__main__" == __name__:\n    x = 1\n    main()\nelse:\n    y = 2\n') == ""
    assert why(tmp_path, f"{text}main()\n") == UNGUARDED
    assert why(tmp_path, f'{text}if __name__ != "__main__":\n    pass\nelse:\n    main()\n') == UNGUARDED
    assert why(tmp_path, f'{text}if __name__ == "__main__":\n    SIZE = 9\nmain()\n') == UNGUARDED


@pytest.mark.parametrize(
    "line", ["for name in ():\n    pass", "print(1)", "with os.scandir():\n    pass", "try:\n    f()\nexcept: pass"]
)
def test_what_else_an_import_would_do_again_is_named(line: str, tmp_path: Path) -> None:
    text = f'import os\ndef f():\n    pass\n{line}\nif __name__ == "__main__":\n    made()\n'
    assert why(tmp_path, text).endswith(f"would run line {5 if 'try' in line else 4} of the script again")


@pytest.mark.parametrize(
    "line",
    [
        'log = open("losses.csv", "w")', 'log = pathlib.Path("losses.csv").open(mode="a")', 'run = wandb.init("mnist")',
        'logging.basicConfig(filename="train.log", filemode="w")', "folder = tempfile.mkdtemp()", "state = train()",
        'log: object = csv.writer(open("losses.csv", "x"))', "np.random.default_rng = os.makedirs('runs')",
    ],
)  # fmt: skip
def test_what_an_import_would_write_again_is_named(line: str, tmp_path: Path) -> None:
    """A file that the script has open would be empty by that."""
    assert first_doing(tmp_path, line) == 2


@pytest.mark.parametrize(
    "line",
    ['words = open("words.txt").read()', 'raw = open("x.bin", "rb")', "f = lambda: open('a', 'w')", "x = jit(f)"],
)
def test_what_an_import_reads_again_is_nothing(line: str, tmp_path: Path) -> None:
    assert first_doing(tmp_path, line) == 0


def first_doing(folder: Path, line: str) -> int:
    """The line that an import does again, of a script whose second one this is."""
    path = folder / "train.py"
    path.write_text(f'import logging\n{line}\nif __name__ == "__main__":\n    main()\n')
    starting._guards.cache_clear()
    linecache.clearcache()
    return starting._guards(str(path))[1]


GUARDED = 'if __name__ == "__main__":\n    made()\n'


def test_data_that_cant_be_pickled_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why(tmp_path, GUARDED, {"dataset": [1, 2], "collate_fn": dict}) == ""
    assert "can't be given its collate_fn: " in why(tmp_path, GUARDED, {"dataset": [1], "collate_fn": lambda x: x})
    assert "can't be given its dataset: TypeError" in why(tmp_path, GUARDED, {"dataset": [threading.Lock()]})
    monkeypatch.setattr(starting, "MOST_BYTES", 1000)
    assert "a copy of the data" in why(tmp_path, GUARDED, {"dataset": bytes(2000)})


@pytest.mark.parametrize("kind", ["mapped", "array", "tensor"])
def test_arrays_are_counted_and_not_copied(kind: str, tmp_path: Path) -> None:
    """A file that is mapped into memory may be larger than that."""
    size = starting.MOST_BYTES + 1
    if kind == "mapped":
        (tmp_path / "data.bin").touch()
        os.truncate(tmp_path / "data.bin", size)
        data: Any = np.memmap(tmp_path / "data.bin", dtype=np.uint8, mode="r")
    else:
        data = np.empty(size, np.uint8) if kind == "array" else torch.empty(size, dtype=torch.uint8)
    tracemalloc.start()
    before = resident()
    try:
        assert "a copy of the data" in why(tmp_path, GUARDED, {"dataset": {"tokens": data}})
        assert tracemalloc.get_traced_memory()[1] < 10 << 20 and resident() - before < 64 << 20
    finally:
        tracemalloc.stop()
    assert why(tmp_path, GUARDED, {"dataset": {"tokens": data[:1000]}}) == ""


def resident() -> int:
    """The most that this process has had in memory, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def starting_by(patch: pytest.MonkeyPatch, default: str, chosen: str = "") -> None:
    """Has multiprocessing start processes so: by itself, as it is from Python 3.14 on, or by the script's choice."""
    methods = [default, *(each for each in ("fork", "spawn", "forkserver") if each != default)]
    patch.setattr(multiprocessing, "get_all_start_methods", lambda: methods)
    context = multiprocessing.get_context(chosen or default)
    patch.setattr(multiprocessing.context._default_context, "_actual_context", context)


@pytest.mark.parametrize("default", ["fork", "forkserver"])
def test_workers_start_as_the_script_says_where_it_says_so(default: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are started anew last; a script that has chosen a method has its own."""
    starting_by(monkeypatch, default)
    given: dict[str, Any] = {"num_workers": 2}
    assert start_anew(given) and given["multiprocessing_context"] == "spawn"
    given = {"num_workers": 2, "multiprocessing_context": "forkserver"}
    assert not start_anew(given) and given["multiprocessing_context"] == "forkserver"
    given = {"num_workers": 0}
    assert not start_anew(given) and "multiprocessing_context" not in given
    starting_by(monkeypatch, default, "forkserver" if default == "fork" else "spawn")
    given = {"num_workers": 2}
    assert not start_anew(given) and "multiprocessing_context" not in given


@pytest.mark.parametrize(
    ("default", "chosen", "said"),
    [
        ("forkserver", "", "fork"), ("forkserver", "spawn", None), ("forkserver", "fork", None), ("fork", "", None),
        ("fork", "forkserver", None), ("spawn", "", None),  # Apple's
    ],
)  # fmt: skip
def test_processes_are_said_to_fork_where_python_no_longer_does(
    default: str, chosen: str, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting_by(monkeypatch, default, chosen)
    assert said_to_fork() == said


class Unpicklable(Numbers):
    """A worker that is started anew can't be given it."""

    def __init__(self) -> None:
        self.read: Callable[[int], tuple[int, int]] = lambda index: (index, os.getpid())

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.read(index)


def trained(loader: DataLoader[Any]) -> set[int]:
    """The processes that read what an epoch trains on."""
    model, readers = torch.nn.Linear(1, 1), set[int]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for numbers, pids in loader:
        loss: Any = model(numbers.float()[:, None]).mean()
        loss.backward()
        optimizer.step()
        readers |= {int(pid) for pid in pids}
    return readers


@pytest.mark.usefixtures("torch_settings_kept")
@pytest.mark.parametrize("mode", ["trial", "apply"])
@pytest.mark.parametrize("by_option", [False, True])
def test_workers_that_a_config_adds_are_forked_whatever_python_does_by_itself(
    begin: Callable[..., Any], mode: str, by_option: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting_by(monkeypatch, "forkserver")
    trial = begin({"num_workers": 2}, mode=mode, framework="torch", as_written={"num_workers": 0})
    if by_option:
        trial.session.knobs.delegate("num_workers")
    options = {"num_workers": 2} if by_option else {}
    loader = DataLoader(Unpicklable(), batch_size=4, shuffle=True, **options)
    readers = trained(loader)
    assert len(readers) == 2 and os.getpid() not in readers
    if mode == "trial":
        trial.end()


@pytest.mark.usefixtures("torch_settings_kept")
def test_workers_that_the_script_has_start_as_python_has_them(
    begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    starting_by(monkeypatch, "forkserver")
    begin({"num_workers": 2}, framework="torch", as_written={"num_workers": 1})
    assert DataLoader(Numbers(), shuffle=True, num_workers=1).multiprocessing_context is None


@pytest.mark.usefixtures("torch_settings_kept")
@pytest.mark.parametrize("by_option", [False, True])
def test_so_do_those_by_which_it_validates_where_the_training_gets_some(
    begin: Callable[..., Any], by_option: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But where its option sets the number of all: they are the config's as well."""
    starting_by(monkeypatch, "forkserver")
    trial = begin({"num_workers": 2}, framework="torch", as_written={"num_workers": 0})
    if by_option:
        trial.session.knobs.delegate("num_workers")
    context: Any = DataLoader(Numbers(), num_workers=1).multiprocessing_context
    assert (context is not None) == by_option


@pytest.mark.usefixtures("torch_settings_kept", "begin")
def test_workers_of_a_config_s_own_are_forked_too(
    script: Callable[..., Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    starting_by(monkeypatch, "forkserver")
    ours = script(Unpicklable())
    epoch = ours.epoch()
    next(epoch), next(epoch)
    ours.switcher.to(TWO)
    next(epoch)
    assert os.getpid() not in ours.made_by[-1]


@pytest.mark.parametrize(("imports", "named"), [(False, "set_default_dtype"), (True, "")])
def test_a_default_that_only_the_script_has_set_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imports: bool, named: str
) -> None:
    """Workers made float32 of what the script made float64 by itself, and nothing told of it."""
    setting = "torch.set_default_dtype(torch.float64)"
    text = f'import torch\n{setting if imports else ""}\nif __name__ == "__main__":\n    {setting}\n    made()\n'
    path = tmp_path / "train.py"
    path.write_text(text)
    script = ModuleType("__main__")
    script.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "__main__", script)
    try:
        assert (named in why(tmp_path, text)) if named else why(tmp_path, text) == ""
    finally:
        torch.set_default_dtype(torch.float32)
