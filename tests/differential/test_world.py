"""The script's world under us and under plain Python, compared as JSON (after coverage.py's ``try_execfile``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WORLD = """
    import json, os, sys, threading, pickle
    class Thing: pass
    world = {
        "name": __name__, "file": __file__, "doc": __doc__, "package": __package__, "spec": __spec__ and __spec__.name,
        "loader": type(__loader__).__name__, "annotations": globals().get("__annotations__"),
        "builtins": type(__builtins__).__name__,
        "names": sorted(n for n in globals() if n != "world"),
        "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "orig_argv": sys.orig_argv[1:],
        "main_is_me": sys.modules["__main__"].__dict__ is globals(),
        "pickles": pickle.loads(pickle.dumps(Thing())).__class__ is Thing,
        "threads": [t.name for t in threading.enumerate()],
        "environment": sorted(k for k in os.environ if k != "LINES" and k != "COLUMNS"),
        "tuner": "tuner" in sys.modules, "ours": sorted(m for m in sys.modules if m.startswith("tuner")),
        "excepthook": sys.excepthook is sys.__excepthook__, "flags": list(sys.flags),
        "open": open.__name__, "open_module": open.__module__,
    }
    print(json.dumps(world, default=str))
"""


def _plain(script: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {"OMP_NUM_THREADS": "1", **os.environ}  # as the fixture gives it to the child
    return subprocess.run(
        [sys.executable, str(script), *argv], cwd=script.parent, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_the_script_finds_the_same_world(write_script: Callable[..., Path], run_child: Callable[..., Any]) -> None:
    script = write_script(WORLD)
    ours = json.loads(run_child(script, argv=("--a", "b c")).output)
    theirs = json.loads(_plain(script, "--a", "b c").stdout)
    assert ours == theirs


def test_a_safe_path_takes_nothing_off_the_users_own(
    write_script: Callable[..., Path], run_child: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "mine.py").write_text("value = 7")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    script = write_script("import sys, mine\nprint(mine.value, sys.path)")
    assert run_child(script).output == _plain(script).stdout


def test_a_users_own_tuner_module_stays_theirs(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    write_script("mine = 'the user wrote this'", "tuner.py")
    script = write_script("import tuner\nprint(tuner.mine)")
    assert run_child(script).output.strip() == "the user wrote this"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("def f():\n    raise KeyError('gone')\nf()", "KeyError"),
        ("open('nowhere.txt')", "FileNotFoundError"),
        ("try:\n    open('nowhere.txt')\nexcept OSError as error:\n    raise ValueError('x') from error", "ValueError"),
        ("try:\n    open('nowhere.txt')\nexcept OSError as error:\n    open('elsewhere.txt')", "FileNotFoundError"),
    ],
    ids=["their own frames", "through a patch", "its cause", "its context"],
)
def test_traceback_and_exit_status_are_the_scripts_own(
    write_script: Callable[..., Path], run_child: Callable[..., Any], text: str, name: str
) -> None:
    script = write_script(text)
    run = run_child(script)
    plain = _plain(script)
    assert run.output == plain.stderr
    assert run.returncode == plain.returncode == 1
    assert run.of("exception")[0]["type"] == name


@pytest.mark.parametrize(
    ("hook", "status"),
    [("1 / 0", 1), ("None.x", 1), ("sys.exit(3)", 3), ("print(*sys.exc_info(), raised[0], file=sys.stderr)", 1)],
    ids=["fails", "fails by a name", "ends Python", "asks what is handled"],
)
def test_a_hook_of_the_scripts_own_is_called_once_and_as_by_python(
    write_script: Callable[..., Path], run_child: Callable[..., Any], hook: str, status: int
) -> None:
    text = f"import sys\ndef hook(*raised):\n    print('called', file=sys.stderr)\n    {hook}\nsys.excepthook = hook\n"
    script = write_script(f"{text}raise KeyError('gone')")
    plain = _plain(script)
    run = run_child(script)
    assert run.output == plain.stderr and run.output.count("called\n") == 1
    assert run.returncode == plain.returncode == status
    assert run.of("exit")[0]["code"] == status


@pytest.mark.parametrize("end", ["sys.exit(3)", "sys.exit('a message')", *(
    pytest.param(end, marks=pytest.mark.slow) for end in ("sys.exit()", "raise SystemExit(0)")
)])
def test_exit_codes(write_script: Callable[..., Path], run_child: Callable[..., Any], end: str) -> None:
    script = write_script(f"import sys\n{end}")
    plain = _plain(script)
    run = run_child(script)
    assert (run.returncode, run.output) == (plain.returncode, plain.stderr)


def test_module_runs_as_with_dash_m(
    tmp_path: Path, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    write_script("", "pkg/__init__.py")
    write_script(
        """
        import json, sys
        from . import other
        print(json.dumps([__name__, __package__, __spec__.name, sys.argv, sys.path[0], other.value]))
        """,
        "pkg/train.py",
    )
    write_script("value = 7", "pkg/other.py")
    anchor = write_script("", "anchor.py")
    run = run_child(anchor, module="pkg.train", argv=("x",))
    plain = subprocess.run(
        [sys.executable, "-m", "pkg.train", "x"], cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(run.output) == json.loads(plain.stdout)


def test_spawned_workers_see_the_script_as_main(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    script = write_script(
        """
        import multiprocessing
        def square(x):
            return x * x
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print(pool.map(square, [1, 2, 3]))
        """
    )
    assert run_child(script).output.strip() == "[1, 4, 9]"


SPAWNS = """
    import sys, torch
    from torch.utils.data import DataLoader, Dataset
    SETTINGS = {"scale": 1}
    class Numbers(Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, number):
            told = f"{SETTINGS['scale']} {torch.get_default_dtype()} {sys.argv[1:]} {__name__}"
            return torch.ones(4), told
    def main():
        SETTINGS["scale"] = 3
        torch.set_default_dtype(torch.float64)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, told in DataLoader(Numbers(), batch_size=16, num_workers=1, multiprocessing_context="spawn"):
            optimizer.zero_grad()
            model(x.double()).square().mean().backward()
            optimizer.step()
            print("told", sorted(set(told)))
    if __name__ == "__main__":
        main()
"""


@pytest.mark.slow  # of a loader's workers what a pool shows above
def test_a_loaders_spawned_workers_have_what_they_have_under_plain_python(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """The script that they import, and nothing of what it sets where it trains: in a trial, and applied."""
    script = write_script(SPAWNS)
    plain = subprocess.run([sys.executable, script, "--a"], capture_output=True, text=True, check=True, timeout=200)
    told = [line for line in plain.stdout.splitlines() if line.startswith("told")]
    assert told == ["told [\"1 torch.float32 ['--a'] __mp_main__\"]"] * 4
    whole = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1}
    for config, mode in (({}, "trial"), ({"prefetch_factor": 4}, "trial"), ({"prefetch_factor": 4}, "apply")):
        ran = run_child(script, config, mode=mode, argv=("--a",), window=whole)
        assert ran.returncode == 0, ran.output
        assert [line for line in ran.output.splitlines() if line.startswith("told")] == told
