"""A script that fails in a trial is told to fail by itself where plain Python fails as well, and nowhere else.

Faults of ours are planted in a copy of the child; scripts, processes, files and the study are real.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import planted, study_driver, worlds

from tuner.child.watch import Watch
from tuner.cli import main
from tuner.devices.cpu import cpu_device
from tuner.errors import ExitCode, OwnFaultError, UntunableError, UserScriptError
from tuner.events import Event, Noted
from tuner.model import OutcomeKind, Script
from tuner.report.summary import summary
from tuner.result import StudyResult
from tuner.runner.launch import CHILD
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits
from tuner.search.chain import Chain
from tuner.search.structured import StructuredSampler
from tuner.search.tpe import TpeSampler
from tuner.space.choose import Spaces
from tuner.space.registry import load_space
from tuner.study.plan import StudyPlan
from tuner.study.run import run_study

pytestmark = pytest.mark.timeout(300)

TRAIN = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(512, 16), torch.randint(0, 4, (512,))), batch_size=8)
    def before(step): pass
    # HERE
    step = 0
    for epoch in range(10_000):
        for x, y in loader:
            before(step)
            step += 1
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
"""


def plan_of(script: Path, space: str = "torch", **changes: Any) -> StudyPlan:
    """A study of a real script, as short as can be."""
    sha256 = hashlib.sha256(script.read_bytes()).hexdigest()
    return worlds.plan(
        script.parent / "study", script=Script(str(script), (), sha256=sha256), device=cpu_device(), cores=2,
        spaces=Spaces((load_space(space),)), selection=("threads",), window=study_driver.QUICK, trials=2,
        finals_rounds=1, limits=Limits(trial_timeout_s=60), **changes,
    )  # fmt: skip


def study(plan: StudyPlan, child: Path = CHILD) -> tuple[StudyResult, list[str]]:
    """Its result, and what it noted."""
    events: list[Event] = []
    sampler = Chain(StructuredSampler(), TpeSampler(0))
    result = run_study(plan, ProcessRunner(child=child), sampler, events.append, threading.Event())
    return result, [event.text for event in events if isinstance(event, Noted)]


def listed(folder: Path) -> dict[str, str]:
    """What lies beside the script: path → content."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    ours = ("study", "planted", "__pycache__")
    return {
        str(path.relative_to(folder)): path.read_text(errors="replace")
        for path in paths if not set(path.relative_to(folder).parts) & set(ours)
    }  # fmt: skip


@pytest.mark.slow
def test_a_watch_that_breaks_the_script_is_left_out_and_the_study_goes_on(
    tmp_path: Path, write_script: Callable[..., Path]
) -> None:
    child = planted.plant(tmp_path, "torch/loader.py", planted.LOADER)
    plan = plan_of(write_script(TRAIN))
    result, notes = study(plan, child)
    assert result.broke_it == ("loader",)
    assert any("TypeError: planted in the watch on loaders" in note for note in notes)
    assert [trial.outcome is not None and trial.outcome.complete for trial in result.trials[:2]] == [True, True]
    assert result.knowledge.without == (Watch.LOADER,) and Watch.LOADER not in result.knowledge.watches
    assert result.knowledge.left_out["num_workers"] == "the watch loader is off"
    told = (plan.folder / "fault.txt").read_text()
    assert "torch/loader.py" in told and "planted in the watch on loaders" in told and "without loader: it runs" in told
    assert "a fault of autotune: it broke this script, which is in order" in summary(result, {}, "")
    again, _ = study(plan, child)
    assert again.broke_it == ("loader",) and again.trials == result.trials, "a resumed study goes on without it"


@pytest.mark.slow  # unit/study/test_blame.py
def test_a_script_that_fails_under_plain_python_fails_by_itself(
    tmp_path: Path, write_script: Callable[..., Path]
) -> None:
    script = write_script(TRAIN.replace("# HERE", "def before(step): assert step < 5, 'no more data'"))
    with pytest.raises(UserScriptError, match="the script fails by itself: AssertionError: no more data") as caught:
        study(plan_of(script))
    assert caught.value.traceback_text.endswith("AssertionError: no more data\n")
    log = script.parent / "study" / "checks" / "plain-Python" / "log.txt"
    assert "AssertionError: no more data" in log.read_text(), "plain Python was asked"
    assert not (script.parent / "study" / "fault.txt").exists()


@pytest.mark.slow
def test_another_failure_under_plain_python_is_told_as_it_is_there(
    tmp_path: Path, write_script: Callable[..., Path]
) -> None:
    child = planted.plant(tmp_path, "torch/loader.py", planted.LOADER)
    script = write_script(TRAIN.replace("# HERE", "def before(step): assert step < 5, 'no more data'"))
    with pytest.raises(UserScriptError, match="by itself: AssertionError: no more data") as caught:
        study(plan_of(script), child)
    assert "in a trial it failed otherwise: TypeError: planted" in caught.value.hint


@pytest.mark.slow
def test_what_the_script_reports_itself_is_enough_without_the_watch_on_steps(
    tmp_path: Path, write_script: Callable[..., Path]
) -> None:
    child = planted.plant(tmp_path, "torch/steps.py", planted.OPTIMIZER)
    reports = "import tuner\n    def before(step): tuner.report(step=step + 1, samples=8 * (step + 1))"
    result, _ = study(plan_of(write_script(TRAIN.replace("# HERE", reports))), child)
    assert result.broke_it == ("optimizer",)
    assert result.baseline is not None and result.baseline.unit == "samples"


@pytest.mark.slow
def test_nothing_is_left_to_measure_by(tmp_path: Path, write_script: Callable[..., Path]) -> None:
    child = planted.plant(tmp_path, "torch/steps.py", planted.OPTIMIZER)
    plan = plan_of(write_script(TRAIN))
    with pytest.raises(OwnFaultError, match="in order, and autotune breaks it: AttributeError: planted") as caught:
        study(plan, child)
    assert caught.value.exit_code is ExitCode.INTERNAL
    assert "torch/steps.py" in caught.value.traceback_text, "the trace is ours"
    assert str(plan.folder / "fault.txt") in caught.value.hint


READS_BACK = """
    def before(step):
        if step == 5:
            with open("made.txt", "w") as file:
                file.write("made")
            assert open("made.txt").read() == "made"
"""


@pytest.mark.slow
def test_the_watch_on_files_is_left_out_by_the_user_alone(tmp_path: Path, write_script: Callable[..., Path],
                                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Without it a trial writes where the script does: nobody but the user may decide that."""
    monkeypatch.chdir(tmp_path)
    child = planted.plant(tmp_path, "python_files.py", planted.FILES)
    script = write_script(TRAIN.replace("    # HERE\n", READS_BACK))
    before = listed(tmp_path)
    with pytest.raises(OwnFaultError, match="FileNotFoundError: planted in the watch on files") as caught:
        study(plan_of(script), child)
    assert "--without files" in caught.value.hint
    assert listed(tmp_path) == before, "what plain Python made is put aside"
    anew = replace(plan_of(script, without=frozenset({Watch.FILES})), folder=tmp_path / "study" / "anew")
    result, _ = study(anew, child)
    assert result.broke_it == () and result.trials[0].outcome is not None and result.trials[0].outcome.complete


@pytest.mark.slow
def test_no_file_of_the_users_is_written_to_find_out(tmp_path: Path, write_script: Callable[..., Path],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    overwrites = "open('mine.txt', 'w').write('lost')\n    def before(step): assert step < 5, 'no more data'"
    script = write_script(TRAIN.replace("# HERE", overwrites))
    (tmp_path / "mine.txt").write_text("the user's")
    before = listed(tmp_path)
    with pytest.raises(UserScriptError, match="the script fails: AssertionError: no more data") as caught:
        study(plan_of(script))
    assert "by itself" not in caught.value.message and "keeps your files safe" in caught.value.hint
    assert listed(tmp_path) == before


def test_a_failure_that_the_surroundings_explain_is_nobodys_fault(
    tmp_path: Path, write_script: Callable[..., Path]
) -> None:
    script = write_script("import os\nprint(os.environ['LOCAL_RANK'])")
    with pytest.raises(UserScriptError, match="expects the environment of a launcher") as caught:
        study(plan_of(script))
    assert "RANK=0" in caught.value.hint
    assert not (script.parent / "study" / "checks").exists()


@pytest.mark.slow
def test_the_command_says_whose_fault_it_was_and_ends_with_its_own_status(
    tmp_path: Path, write_script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    child = planted.plant(tmp_path, "torch/loader.py", planted.LOADER)
    monkeypatch.setattr("tuner.cli.study.ProcessRunner", lambda: ProcessRunner(child=child))
    monkeypatch.chdir(write_script(TRAIN).parent)
    options = ["train.py", "--device", "cpu", "--knobs", "threads", "--trials", "1", "--no-probe"]
    assert main(["study", *options]) == ExitCode.INTERNAL
    said = capsys.readouterr().out
    assert "a fault of autotune: it broke this script, which is in order" in said
    assert "studied without what broke it: loader" in said and "fault.txt" in said


@pytest.mark.slow
def test_a_probe_says_which_watch_to_leave_out(
    tmp_path: Path, write_script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    child = planted.plant(tmp_path, "torch/loader.py", planted.LOADER)
    monkeypatch.setattr("tuner.cli.probe.ProcessRunner", lambda: ProcessRunner(child=child))
    monkeypatch.chdir(write_script(TRAIN).parent)
    assert main(["probe", "train.py", "--device", "cpu"]) == ExitCode.INTERNAL
    errors = capsys.readouterr().err
    assert "the script is in order, and autotune breaks it" in errors and "[own-fault]" in errors
    assert "--without loader leaves out what breaks it" in errors and "torch/loader.py" in errors


@pytest.mark.slow
def test_a_crash_of_the_process_is_followed_up_as_well(tmp_path: Path, write_script: Callable[..., Path]) -> None:
    child = planted.plant(tmp_path, "torch/modules.py", planted.SEGFAULT)
    result, _ = study(plan_of(write_script(TRAIN)), child)
    assert result.broke_it == ("modules",)
    crash = write_script("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "crash/train.py")
    with pytest.raises(UntunableError, match="SIGSEGV"):
        study(plan_of(crash))


KERAS = """
    import keras, numpy
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    x, y = numpy.ones((8, 4), "float32"), numpy.ones((8, 2), "float32")
    if HOW == "tensors":
        import tensorflow as tf
        x, y = tf.constant(x), tf.constant(y)
    import tuner
    for step in range(4000):
        model.train_on_batch(x, y)
        tuner.report(step=step + 1, samples=8 * (step + 1))
"""


@pytest.mark.slow
def test_a_crash_in_train_on_batch_is_not_the_users(tmp_path: Path, write_script: Callable[..., Path]) -> None:
    child = planted.plant(tmp_path, "keras/watches.py", planted.TRAIN_ON_BATCH)
    script = write_script(KERAS.replace("HOW", "'tensors'"))
    result, _ = study(plan_of(script, "keras"), child)
    assert result.broke_it == ("keras",)
    assert result.trials[0].outcome is not None and result.trials[0].outcome.kind is OutcomeKind.COMPLETE


@pytest.fixture
def draws() -> Iterator[tuple[int, list[bytes]]]:
    """A port that gives each caller the next of these letters, and "g" once they are gone."""
    letters: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(letters.pop(0) if letters else b"g")

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1], letters
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.slow  # unit/study/test_blame.py
def test_what_fails_by_chance_is_run_again(
    draws: tuple[int, list[bytes]], write_script: Callable[..., Path]
) -> None:
    """Keras refuses a generator whose first two batches happen to be as long: so it does one time in thirty."""
    port, letters = draws
    drawn = f"import socket; assert socket.create_connection(('127.0.0.1', {port})).recv(1) == b'g', 'a bad draw'"
    letters.append(b"b")
    result, notes = study(plan_of(write_script(TRAIN.replace("# HERE", drawn))))
    assert result.broke_it == () and not any("breaks" in note for note in notes), notes
    assert any("it failed by chance" in note and "a bad draw" in note for note in notes), notes
    first = result.trials[0].outcome
    assert first is not None and first.complete and not first.knowledge.without
