"""A run under plain Python: the script's world is its own, and the user's files stay as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.devices.cpu import cpu_device
from tuner.model import BASELINE, Outcome, OutcomeKind, Script
from tuner.runner import process
from tuner.runner.classify import WITHHELD_REASON
from tuner.runner.plain.sitecustomize import SILENCED
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.study.blame import may_be_ours

Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, write_script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Run:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)

    def run_script(text: str, *argv: str, module: str = "", made: tuple[str, ...] = ()) -> Outcome:
        path = "" if module else str(write_script(text, "home/train.py"))
        request = TrialRequest(
            tmp_path / "run", Script(path, argv, module=module), cpu_device(), BASELINE,
            limits=Limits(trial_timeout_s=20.0, no_progress_s=20.0), plain=True, made=made,
        )  # fmt: skip
        return ProcessRunner().run(request, threading.Event())

    return run_script


WORLD = """
import json, os, sys
print(json.dumps([
    sys.argv, sys.path, sys.orig_argv[1:], sorted(k for k in os.environ), os.environ.get("PYTHONPATH"),
    sorted(m for m in sys.modules if "autotune" in m or "sitecustomize" in m), __file__, list(sys.flags),
    sys.stdin.read(), sys.path_hooks.__len__(), open.__module__,
]))
"""


@pytest.mark.parametrize("path", ["", "first:second"])
def test_the_script_finds_the_world_of_plain_python(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", path)
    if not path:
        monkeypatch.delenv("PYTHONPATH")
    assert run(WORLD, "--a", "b c").kind is OutcomeKind.COMPLETE
    ours = json.loads((tmp_path / "run" / "log.txt").read_text())
    script = str(tmp_path / "home" / "train.py")
    told = subprocess.run(
        [sys.executable, script, "--a", "b c"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    theirs = json.loads(told.stdout)
    silenced = {"WANDB_MODE", "COMET_MODE", "COMET_START_ONLINE", "NEPTUNE_MODE", "SWANLAB_MODE",
                "CLEARML_OFFLINE_MODE", "MLFLOW_TRACKING_URI", "MLFLOW_DISABLE_TELEMETRY", "MLFLOW_ALLOW_FILE_STORE",
                "PYTHONUNBUFFERED", "LINES", "COLUMNS"}  # fmt: skip
    assert set(ours[3]) - silenced == set(theirs[3]) - silenced
    for given in (ours, theirs):
        given[3] = given[7] = None  # the flags: unbuffered, as a trial is
    assert ours == theirs


@pytest.mark.parametrize("own", ["online", "disabled"])
def test_the_users_devices_are_shown_and_a_tracker_that_is_off_is_noted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    monkeypatch.setenv("WANDB_MODE", own)
    (tmp_path / "home" / "wandb").mkdir()
    (tmp_path / "home" / "wandb" / "__init__.py").write_text("from . import inner")
    (tmp_path / "home" / "wandb" / "inner.py").write_text("")
    run("import os, wandb\ntry: import mlflow\nexcept ImportError: pass\nprint(os.environ['CUDA_VISIBLE_DEVICES'])")
    assert (tmp_path / "run" / "log.txt").read_text() == "1,2\n"
    noted = tmp_path / "run" / SILENCED
    assert (noted.read_text() if noted.exists() else "") == ("wandb\n" if own == "online" else "")


@pytest.mark.parametrize(
    ("text", "by"),
    [("import library", "/by-library"), ("import importlib; importlib.import_module('mlflow')", "")],
)
def test_who_imports_a_tracker_is_noted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, by: str
) -> None:
    """accelerate and others import each that is installed, for scripts that log nothing."""
    installed = tmp_path / "lib" / "site-packages"
    (installed / "mlflow").mkdir(parents=True)
    for name, holds in (("library", "import mlflow"), ("mlflow/__init__", "from . import inner"), ("mlflow/inner", "")):
        (installed / f"{name}.py").write_text(holds)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    run(text)
    assert (tmp_path / "run" / SILENCED).read_text() == f"mlflow{by}\n"


WANDB = """
import subprocess
from . import inner
def init(project, mode=None): print(project, mode)
def agent(name, function): print("an agent")
def core(): subprocess.Popen(["/x/wandb-core"])
"""


@pytest.mark.parametrize(
    ("text", "says", "goes_on"),
    [
        ("wandb.init('digits', mode='online'); print(len(sys.meta_path) - finders)", "digits disabled\n0\n", True),
        ("wandb.agent('x1', print)", "", False),
        ("wandb.core()", "", False),
    ],
)
def test_a_tracker_that_is_asked_to_send_sends_nothing(
    run: Run, tmp_path: Path, text: str, says: str, goes_on: bool
) -> None:
    """An argument of the script's counts for more than the variable that switches it off."""
    (tmp_path / "home" / "wandb").mkdir()
    (tmp_path / "home" / "wandb" / "__init__.py").write_text(WANDB)
    (tmp_path / "home" / "wandb" / "inner.py").write_text("")
    outcome = run(f"import sys; finders = len(sys.meta_path)\nimport wandb\n{text}")
    assert (outcome.kind is OutcomeKind.COMPLETE, (tmp_path / "run" / "log.txt").read_text()) == (goes_on, says)
    assert goes_on or outcome.reason == WITHHELD_REASON


SWANLAB = """
def init(project, workspace=None, mode=None): print(project, mode)
def login(): print("asked a server")
"""
MLFLOW = """
def set_tracking_uri(uri): print("sends to", uri)
def _get_store(uri): print("kept in", uri)
"""


def test_so_do_others_that_are_asked_by_an_argument_or_a_call(run: Run, tmp_path: Path) -> None:
    services = tmp_path / "home" / "mlflow" / "tracking" / "_tracking_service"
    services.mkdir(parents=True)
    (services / "utils.py").write_text(MLFLOW)
    (tmp_path / "home" / "swanlab.py").write_text(SWANLAB)
    text = "import swanlab; swanlab.login(); swanlab.init('digits', mode='cloud'); swanlab.init('d', None, 'cloud')"
    text += "; swanlab.init('d', None, 'read-only'); swanlab.init('d', mode='read-only')"
    utils = "from mlflow.tracking._tracking_service import utils; utils.set_tracking_uri('http://x')"
    outcome = run(f"{text}\n{utils}\nutils._get_store('http://x')")
    assert outcome.kind is OutcomeKind.COMPLETE
    kept = f"kept in file://{tmp_path}/run/mlruns"
    assert (tmp_path / "run" / "log.txt").read_text().splitlines() == [
        "digits disabled", "d disabled", "d read-only", "d read-only", kept,
    ]  # fmt: skip


def test_an_environments_own_sitecustomize_is_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("print('the environment')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    run("print('the script')")
    assert (tmp_path / "run" / "log.txt").read_text() == "the environment\nthe script\n"


@pytest.mark.parametrize(
    "touches",
    [
        "open('mine.txt', 'w')",
        "open('mine.txt', 'r+')",
        "open('mine.txt', 'a')",
        "os.open('mine.txt', os.O_RDWR)",
        "os.remove('mine.txt')",
        "os.truncate('mine.txt', 0)",
        "pathlib.Path('mine.txt').write_text('')",
        "open('new.txt', 'w').close(); os.replace('new.txt', 'mine.txt')",
        "os.rename('mine.txt', 'other.txt')",
        "shutil.rmtree('folder')",
        "open('folder/new.log', 'w').close(); shutil.rmtree('folder')",
        "open('folder/new.log', 'w').close(); os.remove('kept.txt', dir_fd=os.open('folder', os.O_RDONLY))",
        "os.rename('kept.txt', 'x', src_dir_fd=os.open('folder', os.O_RDONLY))",
        "os.utime('mine.txt'); os.remove('mine.txt')",
        "os.rmdir('empty')",
        "shutil.copy(__file__, 'mine.txt')",
    ],
)
def test_what_would_touch_the_users_files_ends_the_run(run: Run, tmp_path: Path, touches: str) -> None:
    home = tmp_path / "home"
    (home / "mine.txt").write_text("the user's")
    (home / "folder").mkdir()
    (home / "folder" / "kept.txt").write_text("the user's")
    (home / "empty").mkdir()
    for path in home.rglob("*"):
        os.utime(path, (1, 1))
    outcome = run(f"import os, pathlib, shutil\n{touches}\nprint('went on')")
    assert (outcome.kind, outcome.reason) == (OutcomeKind.INFRASTRUCTURE, "withheld")
    assert "went on" not in (tmp_path / "run" / "log.txt").read_text()
    assert {str(p.relative_to(home)) for p in home.rglob("*")} == {
        "mine.txt", "folder", "folder/kept.txt", "empty", "train.py"
    }  # fmt: skip
    assert (home / "mine.txt").read_text() == (home / "folder" / "kept.txt").read_text() == "the user's"


@pytest.mark.parametrize("folder", ["None", "'folder'"])
def test_a_temporary_file_without_a_name_touches_no_folder(run: Run, tmp_path: Path, folder: str) -> None:
    """Python opens the folder itself for it, which was there before."""
    home = tmp_path / "home"
    (home / "folder").mkdir()
    os.utime(home / "folder", (1, 1))
    outcome = run(f"import tempfile\nwith tempfile.TemporaryFile(dir={folder}) as file: pass\nraise KeyError")
    assert (outcome.kind, outcome.reason) == (OutcomeKind.USER_ERROR, "script-raised")
    assert {path.name for path in home.rglob("*")} == {"train.py", "folder"}


@pytest.mark.parametrize(("variable", "kind"), [("HF_HOME", OutcomeKind.COMPLETE), ("DATA_CACHE", None)])
def test_the_cache_of_a_library_may_be_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, kind: OutcomeKind | None
) -> None:
    """What another variable calls a cache is the user's."""
    cache = tmp_path / "home" / "cache"
    cache.mkdir()
    (cache / "old.txt").write_text("old")
    monkeypatch.setenv(variable, str(cache))
    ended = run(f"open({str(cache / 'old.txt')!r}, 'w').write('new')")
    assert (ended.kind is OutcomeKind.COMPLETE) is (kind is OutcomeKind.COMPLETE)
    assert (cache / "old.txt").read_text() == ("new" if kind else "old")


def test_what_it_makes_is_its_own_until_it_ends_and_is_put_aside_then(run: Run, tmp_path: Path) -> None:
    body = """
    import os, shutil, subprocess
    os.makedirs("out/run")
    with open("out/run/a.txt", "w") as file: file.write("a")
    with open("out/run/a.txt", "a") as file: file.write("b")
    os.replace("out/run/a.txt", "out/run/b.txt")
    subprocess.run(["cp", "out/run/b.txt", "out/run/c.txt"], check=True)  # as a library in C does
    assert open("out/run/b.txt").read() == "ab"
    os.remove("out/run/b.txt")
    os.makedirs("gone/deep")
    open("gone/deep/x.txt", "w").close()
    subprocess.run(["cp", "gone/deep/x.txt", "gone/y.txt"], check=True)
    shutil.rmtree("gone")
    subprocess.run(["cp", "train.py", "z.txt"], check=True)
    os.remove("z.txt")
    open("log.txt", "w").write("x" * 2_000_000)
    """
    outcome = run(body)
    assert outcome.kind is OutcomeKind.COMPLETE, (tmp_path / "run" / "log.txt").read_text()
    assert {path.name for path in (tmp_path / "home").rglob("*")} == {"train.py"}
    kept = tmp_path / "run" / "files" / str(tmp_path / "home").lstrip("/")
    assert (kept / "out" / "run" / "c.txt").read_text() == "ab" and (kept / "log.txt").exists()


@pytest.mark.parametrize("link", ["os.symlink", "os.link"])
def test_links_that_it_makes_are_put_aside_as_well(run: Run, tmp_path: Path, link: str) -> None:
    """One to a checkpoint that is put aside would lead nowhere, and the next run couldn't make it anew."""
    home = tmp_path / "home"
    (home / "mine.txt").write_text("the user's")
    body = f"import os\nopen('1.pt', 'w').close()\n{link}('1.pt', 'last.pt')\n{link}('mine.txt', 'also.txt')\n"
    again = "os.remove('last.pt')\nopen('2.pt', 'w').close()\n" + f"{link}('2.pt', 'last.pt')\nraise KeyError"
    assert run(body + again).reason == "script-raised"
    assert {path.name for path in home.iterdir()} == {"train.py", "mine.txt"}
    assert (home / "mine.txt").read_text() == "the user's"


@pytest.mark.parametrize("link", ["os.symlink", "os.link"])
def test_the_users_files_are_not_written_through_a_link_that_it_makes(run: Run, tmp_path: Path, link: str) -> None:
    home = tmp_path / "home"
    (home / "mine.txt").write_text("the user's")
    os.utime(home / "mine.txt", (1, 1))
    text = f"import os\n{link}('mine.txt', 'last.txt')\nopen('last.txt', 'w').write('x')\nprint('went on')"
    assert run(text).reason == WITHHELD_REASON
    assert (home / "mine.txt").read_text() == "the user's"
    assert {path.name for path in home.iterdir()} == {"train.py", "mine.txt"}


LOGS = """
import os, subprocess, sys
for name in sys.argv[1:]:
    subprocess.run(["mkdir", "-p", os.path.dirname(name) or "."], check=True)  # as a library in C does
    subprocess.run(["touch", name], check=True)
raise KeyError("x")
"""


def test_what_is_written_past_python_where_trials_made_files_is_put_aside(run: Run, tmp_path: Path) -> None:
    """What was there before stays, and so does what has another name, were it by its numbers alone: somebody else's
    training may have written that.
    """
    home = tmp_path / "home"
    (home / "runs" / "1").mkdir(parents=True)
    kept = {"runs/events.out.17.host.41.v2", "runs/1/events.out.17.host.41.v2", "runs/notes.txt", "train.py"}
    for name in kept - {"train.py"}:
        (home / name).write_text("the user's")
    made = ("logs/train/events.out.18.host.7.v2", "runs/events.out.18.host.7.v2", "runs/2/a/events.out.18.host.7.v2")
    new = ("logs/train/events.out.19.host.8.v2", "runs/2/a/other.txt", "runs/events.out.19.host.8.v2", "runs/13/b.txt")
    assert run(LOGS, *new, made=tuple(str(home / name) for name in made)).reason == "script-raised"
    left = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    assert left == kept | {*new[2:]}
    assert {path.name for path in home.rglob("*") if path.is_dir()} == {"runs", "1", "13"}
    aside = tmp_path / "run" / "files" / str(home).lstrip("/")
    assert all((aside / name).exists() for name in new[:2])


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        ("raise KeyError('x')", OutcomeKind.USER_ERROR, "script-raised"),
        ("import sys; sys.exit(3)", OutcomeKind.USER_ERROR, "script-failed"),
        ("(", OutcomeKind.USER_ERROR, "script-raised"),
        ("import os; os.kill(os.getpid(), 11)", OutcomeKind.CRASHED, "signal-segv"),
    ],
)
def test_how_it_ended(run: Run, text: str, kind: OutcomeKind, reason: str) -> None:
    outcome = run(text)
    assert (outcome.kind, outcome.reason) == (kind, reason)
    assert bool(outcome.traceback_text) is (reason == "script-raised")


def test_a_module_is_run_as_one(run: Run, tmp_path: Path) -> None:
    (tmp_path / "home" / "pkg").mkdir()
    (tmp_path / "home" / "pkg" / "__init__.py").write_text("")
    (tmp_path / "home" / "pkg" / "train.py").write_text("print(__name__, __package__)")
    assert run("", module="pkg.train").kind is OutcomeKind.COMPLETE
    assert (tmp_path / "run" / "log.txt").read_text() == "__main__ pkg\n"


@pytest.mark.parametrize("for_memory", [True, False])
def test_plain_python_that_the_kernel_killed_for_memory_says_nothing_of_the_script(
    run: Run, monkeypatch: pytest.MonkeyPatch, for_memory: bool
) -> None:
    counts = iter([7, 8 if for_memory else 7])
    monkeypatch.setattr(process, "oom_kills", lambda: next(counts))
    outcome = run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert outcome.reason == ("host-oom" if for_memory else "signal-kill")
    assert not may_be_ours(outcome)
