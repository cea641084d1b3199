"""The real command from a script to best.json and back: a whole study of a small script must prove its winner.

Its windows are short (``support.short_study``); that it measures as long as it should is shown by the campaigns.

Where a hypervisor takes the machine away all the while, a study rightly proves nothing: it must say so then, and what
is derived from it must agree with that.
"""

from __future__ import annotations

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from support.command import SCRIPT, WITH_SHORT_WINDOWS, Place

from tuner.analysis.comparison import FEWEST_PAIRS
from tuner.analysis.contention import Host
from tuner.devices.base import FOREIGN_SHARE
from tuner.devices.host import spare_cores, usable_cores

# The finals end once their gain is known well; where others disturb them, only as the budget does.
BUDGET_S = 240
STUDY_TIMEOUT_S = 2 * BUDGET_S + 60
pytestmark = [pytest.mark.timed, pytest.mark.timeout(STUDY_TIMEOUT_S + 60)]
STUDY = [
    "study", "train.py", "--knobs", "num_workers", "--trials", "2", "--no-probe", "--budget", f"{BUDGET_S}s",
    "--device", "cpu",
]  # fmt: skip
FOLDER_SUFFIX = "train-cpu"


@dataclass(frozen=True)
class Studied:
    """A finished study."""

    place: Place
    answer: subprocess.CompletedProcess[str]
    folder: Path
    seconds: float

    @property
    def verdict(self) -> str:
        """The summary's first line."""
        starts = ("faster: ", "keep your config: ", "can't tell: ", "not proven: ")
        return next(line for line in self.answer.stdout.splitlines() if line.startswith(starts))

    @property
    def proven(self) -> bool:
        """Whether it proved its winner."""
        return self.verdict.startswith("faster: ")

    @cached_property
    def config(self) -> dict[str, int]:
        """What it tried: as many workers as keep up. Beside others a batch may take longer to load than a step."""
        trials = json.loads(self.place.run("trials", "--json").stdout)
        [tried] = [trial["config"] for trial in trials if trial["phase"] == "search"]
        assert tried in ({"num_workers": 1}, {"num_workers": 2})
        return dict(tried)

    @property
    def workers(self) -> int:
        """The number of them."""
        return self.config["num_workers"]

    @property
    def is_disturbed(self) -> bool:
        """Whether the machine was taken away in most rounds of the finals, by the trials' own readings."""
        trials = json.loads(self.place.run("trials", "--json").stdout)
        runs = [trial["measurement"] for trial in trials if trial["phase"] == "finals" and trial["config"]]
        most_cpus = Host(usable_cores(), FOREIGN_SHARE, spare_cores()).most_foreign_cpus
        busy = [run for run in runs if run["foreign_cpus"] > most_cpus]
        return len(runs) - len(busy) < FEWEST_PAIRS


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Studied:
    place = Place(tmp_path_factory.mktemp("e2e"), WITH_SHORT_WINDOWS)
    # It trains for longer than any trial, so that trials take turns.
    place.write(SCRIPT.replace("default=2.5", "default=3600.0"), "train.py")
    started = time.monotonic()
    answer = place.run(*STUDY, timeout_s=STUDY_TIMEOUT_S)
    seconds = time.monotonic() - started
    assert answer.returncode == 0, answer.stdout + answer.stderr
    [folder] = place.folder.glob(f"autotune-*{FOLDER_SUFFIX}")
    return Studied(place, answer, folder, seconds)


def test_a_study_proves_a_winner(studied: Studied) -> None:
    lines = studied.answer.stdout.splitlines()
    assert lines[0].startswith("tuning train.py on cpu (")
    assert studied.answer.stderr == ""
    [profile] = json.loads((studied.folder / "best.json").read_bytes())["profiles"]
    if not studied.proven:
        assert studied.is_disturbed, studied.answer.stdout
        assert (profile["verdict"], profile["config"]) == ("keep-baseline", {})
        assert profile["candidate"]["config"] == studied.config
        return
    assert f"faster: num_workers={studied.workers}" in lines, studied.answer.stdout
    assert profile["verdict"] == "improved"
    assert profile["config"] == studied.config
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
    assert time.monotonic() - started < studied.seconds / 2, "it starts and looks, and runs nothing"
    assert again.returncode == 0
    resumed = again.stdout.split("resuming after 2 trials\nas written: ", 1)[1].splitlines()
    assert "samples/s" in resumed[0]
    assert resumed[1].startswith(f"best so far, by its single trial: num_workers={studied.workers}, ")
    assert studied.verdict in again.stdout.splitlines()
    assert studied.place.run("trials", "--json").stdout == trials
    [after] = json.loads(best.read_bytes())["profiles"]
    of_this_writing = {"study": None, "checksum": None}
    assert {**after, **of_this_writing} == {**before, **of_this_writing}
    assert studied.place.run("trials", "--check").returncode == 0


@pytest.mark.slow  # unit/study/test_identity.py
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
    assert answer.stdout == f"workers={studied.workers if studied.proven else 0} batch=4\n"
    assert answer.returncode == 0
    assert "its arguments were" in answer.stderr
    assert (f"applying num_workers={studied.workers} (" in answer.stderr) == studied.proven
    assert model.is_file(), "a run is no trial: what it saves is kept where it says"
    model.unlink()


@pytest.mark.slow  # contract/test_untrusted_files.py
def test_run_refuses_drift_where_that_is_asked_for(studied: Studied) -> None:
    arguments = ("--strict", "train.py", "--", "--seconds", "0.2")
    answer = studied.place.run("run", "--config", studied.folder.name, *arguments)
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: ") and "[profile]" in answer.stderr


def test_the_tables_and_their_json(studied: Studied) -> None:
    verbs = (("trials", "--json"), ("trials",), ("studies", "--json"), ("devices", "--json"),
             ("compare", studied.folder.name, "--json"))  # fmt: skip
    with ThreadPoolExecutor(2) as both_cores:
        told = [each.stdout for each in both_cores.map(lambda arguments: studied.place.run(*arguments), verbs)]
    trials = json.loads(told[0])
    assert list(dict.fromkeys(trial["phase"] for trial in trials)) == ["baseline", "search", "finals"]
    assert trials[0]["config"] == {} and trials[0]["gain"] == 1.0
    [tried] = [trial for trial in trials if trial["phase"] == "search"]
    assert tried["gain"] > (1.5 if studied.proven else 1.0)
    table = told[1].splitlines()
    assert len(table) >= 1 + len(trials)
    assert [int(line.split()[0]) for line in table[1 : 1 + len(trials)]] == list(range(len(trials)))
    [study] = json.loads(told[2])
    verdict = "improved" if studied.proven else "keep-baseline"
    assert (study["state"], study["verdict"], study["trials"]) == ("finished", verdict, len(trials))
    assert json.loads(told[3])["devices"][0]["device"]
    compared = json.loads(told[4])
    assert [profile["baseline"]["based_on"] for profile in compared["profiles"]] == ["finals"]


@pytest.mark.parametrize(
    "arguments", [["trials"], *(pytest.param(each, marks=pytest.mark.slow) for each in (["trials", "--json"], STUDY))]
)
def test_whoever_stops_reading_ends_it_quietly(studied: Studied, arguments: list[str]) -> None:
    process = studied.place.start(*arguments)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), errors) == (141, "")
