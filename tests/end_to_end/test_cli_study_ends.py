"""What else may happen to a study, by the real command: a script that can't be tuned, Ctrl-C, another folder."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.command import SCRIPT, WITH_SHORT_WINDOWS, Place, place

__all__ = ["place"]


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("raise ValueError('my own bug')", "ValueError: my own bug"),
        pytest.param("def f(:", "SyntaxError: invalid syntax", marks=pytest.mark.slow),
    ],
)
def test_a_users_bug_is_shown_as_their_own_traceback(place: Place, text: str, last: str) -> None:
    place.write(text, "train.py")
    answer = place.run("study", "train.py", "--device", "cpu", "--study", "s")
    lines = answer.stderr.splitlines()
    assert answer.returncode == 3
    assert lines[-3] == last
    assert lines[-2].startswith("error: ") and lines[-2].endswith("[script-failed]")
    assert "s/trials/0000/log.txt" in lines[-1]
    assert str(Path(__file__).parents[2] / "tuner") not in answer.stderr, "our own frames are no news to them"
    assert not (place.folder / "s" / "best.json").exists()


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("print('no card here')", [], "used none of PyTorch, TensorFlow, Keras and JAX; it printed last: no card here"),
        pytest.param(  # faults/test_stalls.py
            "import time\ntime.sleep(60)", ["--trial-timeout", "3s"], "not through after 3", marks=pytest.mark.slow
        ),
    ],
)
def test_a_script_that_can_not_be_tuned_is_told_in_a_line(
    place: Place, text: str, options: list[str], says: str
) -> None:
    place.write(text, "train.py")
    answer = place.run("study", "train.py", "--device", "cpu", "--study", "s", *options)
    error, hint = answer.stderr.splitlines()
    assert answer.returncode == 3
    assert error.startswith("error: ") and says in error and error.endswith("[untunable]")
    assert hint.startswith("hint: ")


@pytest.mark.slow  # how it runs: test_probe.py; what a study makes of it: unit/study/test_study_probe.py
def test_what_a_probe_found_stands_below_the_trials(place: Place) -> None:
    """Loading takes three times as long as training."""
    place = replace(place, command=WITH_SHORT_WINDOWS)
    place.write(SCRIPT.replace("time.sleep(0.004)", "time.sleep(0.012)"), "train.py")
    options = ("--knobs", "num_workers", "--trials", "1", "--device", "cpu")
    answer = place.run("study", "train.py", *options, "--", "--seconds", "1.5")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    trials = json.loads(place.run("trials", "--json").stdout)
    assert list(dict.fromkeys(trial["phase"] for trial in trials)) == ["baseline", "probe"]
    table = place.run("trials").stdout.splitlines()
    assert any("input-bound" in line for line in table[1 + len(trials) :]), table


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])  # unit/cli/test_signals.py
def test_ctrl_c_ends_a_study_with_what_there_is(place: Place, times: int) -> None:
    place.write("import time\nprint('trains', flush=True)\ntime.sleep(60)", "train.py")
    process = place.start("study", "train.py", "--device", "cpu", "--study", "s")
    try:
        log = place.folder / "s" / "trials" / "0000" / "log.txt"
        deadline = time.monotonic() + 60
        while not (log.is_file() and "trains" in log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert json.loads(place.run("studies", "--json").stdout)[0]["state"] == "running"
        for _ in range(times):
            process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "stopping: finishing with the best so far (Ctrl-C again quits at once)" in output.splitlines()
    if times == 1:
        assert errors == ""
        assert "no result yet: the script as written was not measured to the end" in output.splitlines()
        assert output.splitlines()[-1].split() == ["resume", "run", "the", "same", "command", "again"]
    [study] = json.loads(place.run("studies", "--json").stdout)
    assert study["state"] == "stopped"


def test_a_dry_run_makes_nothing(place: Place) -> None:
    place.write("raise SystemExit('never started')", "train.py")
    answer = place.run("study", "train.py", "--device", "cpu", "--dry-run", "--", "--name", "first")
    assert answer.returncode == 0, answer.stderr
    said = {" ".join(line.split()) for line in answer.stdout.splitlines()}
    assert {"script train.py", "arguments --name first"} <= said
    assert [path.name for path in place.folder.iterdir()] == ["train.py"]


@pytest.mark.slow  # what is refused, and the words for it: unit/space/test_choose.py
@pytest.mark.parametrize("verb", ["study", "probe"])
def test_a_knob_of_another_framework_is_refused_once_the_baseline_is_known(
    place: Place, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    source = """
        from tuner.space import Knob, SearchSpace
        SPACE = SearchSpace("tiny", "other", (Knob("lever", lambda known: [1, 2], "a lever"),))
    """
    install("tiny_space", source, search_spaces="tiny = tiny_space:SPACE")
    monkeypatch.setenv("PYTHONPATH", f"{place.folder / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    place.write(SCRIPT, "train.py")
    place.write('[study]\nscript = "train.py"\nknobs = ["lever"]\n', "study.toml")
    answer = place.run(verb, "--device", "cpu", "--study", verb)
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "error: lever is a knob of 'tiny', and the script trains with torch 2." in answer.stderr
