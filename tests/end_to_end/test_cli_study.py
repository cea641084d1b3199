"""The real command from a script to best.json and back: a whole study of a small script, and what else may happen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

AUTOTUNE = str(Path(sys.executable).with_name("autotune"))
# Loading a batch and training on it are sleeps of one length, so that a worker doubles the speed whatever else the
# machine does. The script ends by itself before a whole window is measured, so that a trial is short.
SCRIPT = """
    import argparse
    import time

    import torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 400

        def __getitem__(self, index):
            time.sleep(0.004)
            return torch.full((8,), index / 400), torch.ones(1)

    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.5)
    options = parser.parse_args()
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(loader):
        end = time.monotonic() + options.seconds
        while True:
            for inputs, targets in loader:
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(inputs), targets).backward()
                optimizer.step()
                time.sleep(0.016)
                if time.monotonic() > end:
                    return

    if __name__ == "__main__":
        loader = DataLoader(Slow(), batch_size=4)
        train(loader)
        torch.save(model.state_dict(), "model.pt")
        print(f"workers={loader.num_workers} batch={loader.batch_size}")
"""
STUDY = ["study", "train.py", "--knobs", "num_workers", "--trials", "2", "--budget", "400s", "--device", "cpu"]
FOLDER_SUFFIX = "train-cpu"


@dataclass(frozen=True)
class Place:
    """A folder with a script, where the command is run."""

    folder: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts the command; its locks are its own, so that tests may run beside somebody's study."""
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder / ".cache")}
        return subprocess.Popen(
            [AUTOTUNE, *arguments], cwd=self.folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs the command to its end."""
        process = self.start(*arguments)
        try:
            output, errors = process.communicate(timeout=240)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def write(self, text: str, name: str) -> None:
        """Writes a script."""
        (self.folder / name).write_text(textwrap.dedent(text), encoding="utf-8")

    def processes(self) -> list[str]:
        """Trials that were started here and still live."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            try:
                if str(self.folder).encode() in entry.read_bytes():
                    found.append((entry.parent / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue  # it ended meanwhile, or it's another user's
        return found


@dataclass(frozen=True)
class Studied:
    """A finished study."""

    place: Place
    answer: subprocess.CompletedProcess[str]
    folder: Path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    yield Place(tmp_path)
    assert Place(tmp_path).processes() == []


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Studied:
    place = Place(tmp_path_factory.mktemp("e2e"))
    place.write(SCRIPT, "train.py")
    answer = place.run(*STUDY)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    [folder] = place.folder.glob(f"autotune-*{FOLDER_SUFFIX}")
    return Studied(place, answer, folder)


def test_a_study_proves_a_winner(studied: Studied) -> None:
    lines = studied.answer.stdout.splitlines()
    assert lines[0].startswith("tuning train.py on cpu (")
    assert "faster: num_workers=1" in lines, studied.answer.stdout
    assert studied.answer.stderr == ""
    [profile] = json.loads((studied.folder / "best.json").read_bytes())["profiles"]
    assert profile["verdict"] == "improved"
    assert profile["config"] == {"num_workers": 1}
    assert profile["speedup"]["low"] > 1.0
    assert profile["runs"] >= 3
    assert profile["script"]["argv"] == []


def test_a_study_leaves_the_folder_of_the_script_alone(studied: Studied) -> None:
    names = {path.name for path in studied.place.folder.iterdir()}
    assert names - {"__pycache__"} == {"train.py", ".cache", studied.folder.name}
    assert studied.place.processes() == []


def test_the_same_command_again_derives_its_result_at_once(studied: Studied) -> None:
    trials = studied.place.run("trials", "--json").stdout
    assert studied.place.run("trials", "--check").returncode == 0
    best = studied.folder / "best.json"
    [before] = json.loads(best.read_bytes())["profiles"]
    best.unlink()
    started = time.monotonic()
    again = studied.place.run(*STUDY)
    assert time.monotonic() - started < 15
    assert again.returncode == 0
    assert "resuming after 2 trials\nbest so far, not proven yet: num_workers=1, " in again.stdout
    assert [line for line in again.stdout.splitlines() if line.startswith("faster: ")]
    assert studied.place.run("trials", "--json").stdout == trials
    [after] = json.loads(best.read_bytes())["profiles"]
    assert {**after, "study": None} == {**before, "study": None}


def test_other_arguments_are_another_study(studied: Studied) -> None:
    answer = studied.place.run(*STUDY, "--", "--seconds", "1")
    assert answer.returncode == 5
    error, *_ = answer.stderr.splitlines()
    assert "belongs to something else" in error
    assert "script.argv" in answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("hint: ")
    assert "--new" in answer.stderr


def test_run_applies_the_winner_and_the_training_is_the_users_own(studied: Studied) -> None:
    arguments = ("train.py", "--", "--seconds", "0.2")
    answer = studied.place.run("run", "--config", f"{studied.folder.name}/best.json", *arguments)
    model = studied.place.folder / "model.pt"
    assert answer.stdout == "workers=1 batch=4\n"
    assert answer.returncode == 0
    assert "its arguments were" in answer.stderr and "applying num_workers=1 (" in answer.stderr
    assert model.is_file(), "a run is no trial: what it saves is kept where it says"
    model.unlink()


def test_run_refuses_drift_where_that_is_asked_for(studied: Studied) -> None:
    arguments = ("--strict", "train.py", "--", "--seconds", "0.2")
    answer = studied.place.run("run", "--config", studied.folder.name, *arguments)
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: ") and "[profile]" in answer.stderr


def test_the_tables_and_their_json(studied: Studied) -> None:
    trials = json.loads(studied.place.run("trials", "--json").stdout)
    assert list(dict.fromkeys(trial["phase"] for trial in trials)) == ["baseline", "probe", "search", "finals"]
    assert trials[0]["config"] == {} and trials[0]["gain"] == 1.0
    [tried] = [trial for trial in trials if trial["phase"] == "search"]
    assert tried["config"] == {"num_workers": 1} and tried["gain"] > 1.5
    table = studied.place.run("trials").stdout.splitlines()
    assert len(table) >= 1 + len(trials)
    assert [int(line.split()[0]) for line in table[1 : 1 + len(trials)]] == list(range(len(trials)))
    assert any("input-bound" in line for line in table[1 + len(trials) :])
    [study] = json.loads(studied.place.run("studies", "--json").stdout)
    assert (study["state"], study["verdict"], study["trials"]) == ("finished", "improved", len(trials))
    assert json.loads(studied.place.run("devices", "--json").stdout)[0]["device"]


@pytest.mark.parametrize("arguments", [["trials"], ["trials", "--json"], STUDY])
def test_whoever_stops_reading_ends_it_quietly(studied: Studied, arguments: list[str]) -> None:
    process = studied.place.start(*arguments)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), errors) == (141, "")


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("raise ValueError('my own bug')", "ValueError: my own bug"),
        ("def f(:", "SyntaxError: invalid syntax"),
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
        ("print('hello')", [], "without a training step"),
        ("import time\ntime.sleep(60)", ["--trial-timeout", "3s"], "not through after 3"),
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


def test_another_script_does_not_get_the_folder(place: Place) -> None:
    place.write("print('one')", "one.py")
    place.write("print('other')", "other.py")
    place.run("study", "one.py", "--device", "cpu", "--study", "s")
    answer = place.run("study", "other.py", "--device", "cpu", "--study", "s")
    assert answer.returncode == 5, answer.stdout + answer.stderr
    assert "script.path: one.py → other.py" in answer.stderr


@pytest.mark.parametrize("times", [1, 2])
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


def test_a_knob_of_another_framework_is_refused_once_the_baseline_is_known(
    place: Place, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
        from tuner.space import Knob, SearchSpace
        SPACE = SearchSpace("tiny", "other", (Knob("lever", lambda known: [1, 2], "a lever"),))
    """
    install("tiny_space", source, search_spaces="tiny = tiny_space:SPACE")
    monkeypatch.setenv("PYTHONPATH", f"{place.folder / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    place.write(SCRIPT, "train.py")
    place.write('[study]\nscript = "train.py"\nknobs = ["lever"]\n', "study.toml")
    for verb in ("study", "probe"):
        answer = place.run(verb, "--device", "cpu", "--study", verb)
        assert answer.returncode == 2, answer.stdout + answer.stderr
        assert "error: lever is a knob of 'tiny', and the script trains with torch 2." in answer.stderr
