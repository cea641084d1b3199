"""Whether workers may be started anew: by where the script trains, by what it does when it is imported, by its data."""

from __future__ import annotations

import linecache
import multiprocessing
import os
import resource
import sys
import threading
import tracemalloc
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tuner.child.torch import starting
from tuner.child.torch.starting import UNGUARDED, WORKERS, refusals, start_anew


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


def test_workers_start_as_the_script_says_where_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are started anew last; a script that has chosen a method has its own."""
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "fork")
    given: dict[str, Any] = {"num_workers": 2}
    assert start_anew(given) and given["multiprocessing_context"] == "spawn"
    given = {"num_workers": 2, "multiprocessing_context": "forkserver"}
    assert not start_anew(given) and given["multiprocessing_context"] == "forkserver"
    given = {"num_workers": 0}
    assert not start_anew(given) and "multiprocessing_context" not in given
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "forkserver")
    given = {"num_workers": 2}
    assert not start_anew(given) and "multiprocessing_context" not in given


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
