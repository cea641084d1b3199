"""A real study that the version before made (schema 2): one that ended, and the same one killed in its finals.

``assets/study-schema-2.tar.xz`` holds the script, both databases, and the raw records of the one that ended.
"""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tuner.analysis.accuracy import AccuracyLimits
from tuner.model import Config, Device, Outcome, Phase, Script, Trial
from tuner.runner.request import Limits, Runner, TrialRequest
from tuner.space.choose import Spaces
from tuner.space.registry import load_objective, load_space
from tuner.storage.database import Repository
from tuner.study.plan import StudyPlan

ASSET = Path(__file__).parent.parent / "assets" / "study-schema-2.tar.xz"
TRIALS = 45


def unpack(folder: Path) -> Path:
    """Unpacks the studies into ``folder``: they lie in its ``finished`` and its ``stopped``."""
    with tarfile.open(ASSET) as archive:
        archive.extractall(folder, filter="data")
    return folder


def address(folder: Path) -> str:
    """The database of the study in ``folder``."""
    return f"sqlite:///{folder / 'study.db'}"


def plan(folder: Path, **changes: Any) -> StudyPlan:
    """The plan that the study in ``folder`` was made by, as its identity tells it."""
    repository = Repository(address(folder))
    identity = repository.studies()[0].identity
    repository.close()
    values: dict[str, Any] = {
        "name": "old", "script": Script(
            identity["script.path"], tuple(identity["script.argv"]), sha256=identity["script.sha256"]
        ),
        "device": Device("cpu", 0, identity["device.name"], identity["device.name"], 2**34), "folder": folder,
        "spaces": Spaces((load_space("torch"),)), "objective": load_objective("throughput"), "trials": 5,
        "budget_s": 900.0, "accuracy": AccuracyLimits(samples=6400), "limits": Limits(trial_timeout_s=40),
        "cores": identity["device.cores"], "most_rounds": 7, "looks_beyond": 0,
        "software": {
            name.removeprefix("software."): version for name, version in identity.items() if name[:9] == "software."
        },
    }  # fmt: skip
    return StudyPlan(**{**values, **changes})


def key(trial: Trial) -> tuple[object, ...]:
    """What tells a run from the study's others, whatever its number."""
    return trial.phase, trial.config, trial.round, trial.seed, trial.samples, trial.side


class RecordedRunner(Runner):
    """Gives each run of a study the outcome that the same run had in a recorded one. ``ran`` holds those asked for."""

    def __init__(self, folder: Path, recorded: Iterable[Trial]) -> None:
        self._folder = folder
        self._recorded = {key(trial): trial.outcome for trial in recorded}
        self.ran: list[Trial] = []

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """The recorded outcome; an anchor, which the recorded study had none of, gets the baseline's."""
        repository = Repository(address(self._folder))
        trials = {record.trial.number: record.trial for record in repository.records(1)}
        repository.close()
        trial = trials[int(request.folder.name)]
        self.ran.append(trial)
        request.folder.mkdir(parents=True)
        baseline = (Phase.BASELINE, Config(), None, None, None, None)
        outcome = self._recorded[baseline if trial.phase is Phase.ANCHOR else key(trial)]
        assert outcome is not None
        return outcome
