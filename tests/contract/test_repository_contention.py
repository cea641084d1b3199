"""Several processes on one database: nothing is run twice, nothing is lost. For every database that is to hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuner.model import BASELINE, Config, Outcome, OutcomeKind, Phase
from tuner.storage.database import NewTrial, Repository, TrialState

PROCESSES = 5
TRIALS = 40
# Does what each line of its input says, and answers with the words that were printed.
WORKER = """
import contextlib, io, json, sys, time
from tuner.model import BASELINE, Config, Outcome, OutcomeKind, Phase
from tuner.storage.database import NewTrial, Repository
names = dict(globals())
for line in sys.stdin:
    url, owner, work = json.loads(line)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(work, {**names, "url": url, "owner": owner})
    print(json.dumps(printed.getvalue().split()), flush=True)
"""
AtOnce = Callable[[str, str], list[list[str]]]


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def at_once() -> Iterator[AtOnce]:
    """The words that each process printed of a work on a database; all begin together. They live for all tests."""
    processes = [_start() for _ in range(PROCESSES)]

    def run(url: str, work: str) -> list[list[str]]:
        for number, process in enumerate(processes):
            assert process.stdin is not None
            process.stdin.write(json.dumps([url, f"owner-{number}", work]) + "\n")
            process.stdin.flush()
        return [_answer(process) for process in processes]

    try:
        yield run
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _answer(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    words: list[str] = json.loads(line)
    return words


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'study.db'}"
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
def repository(url: str) -> Iterator[Repository]:
    opened = Repository(url)
    yield opened
    opened.close()


def test_a_waiting_trial_is_claimed_by_one(url: str, repository: Repository, at_once: AtOnce) -> None:
    study = repository.create_study(f"claims-{os.getpid()}", {}).id
    for number in range(TRIALS):
        repository.start_trial(study, NewTrial(Phase.SEARCH, Config(num_workers=number)), "none")
        repository.requeue_trial(study, number)
    claimed = at_once(
        url,
        f"""
repository = Repository(url)
while (trial := repository.claim_trial({study}, owner)) is not None:
    time.sleep(0.01)  # a trial takes its time, and the others get their turn
    assert repository.finish_trial({study}, trial.number, Outcome(OutcomeKind.CRASHED, owner))
    print(trial.number)
""",
    )
    owners = {int(number): f"owner-{process}" for process, numbers in enumerate(claimed) for number in numbers}
    assert Counter(number for numbers in claimed for number in numbers).most_common(1)[0][1] == 1
    assert sorted(owners) == list(range(TRIALS))
    records = repository.records(study)
    assert all(record.state is TrialState.FINISHED and record.attempts == 2 for record in records)
    assert {r.trial.number: r.owner for r in records} == owners
    assert {r.trial.number: r.trial.outcome.reason for r in records if r.trial.outcome is not None} == owners
    assert len([numbers for numbers in claimed if numbers]) > 1, "one process did everything: nothing was tested"


def test_numbers_are_given_once(url: str, repository: Repository, at_once: AtOnce) -> None:
    study = repository.create_study(f"numbers-{os.getpid()}", {}).id
    printed = at_once(
        url,
        f"""
repository = Repository(url)
for _ in range(8):
    print(repository.start_trial({study}, NewTrial(Phase.SEARCH, Config()), owner).number)
""",
    )
    assert sorted(int(number) for numbers in printed for number in numbers) == list(range(8 * PROCESSES))


def test_an_outcome_is_stored_by_one(url: str, repository: Repository, at_once: AtOnce) -> None:
    study = repository.create_study(f"outcomes-{os.getpid()}", {}).id
    for _ in range(10):
        repository.start_trial(study, NewTrial(Phase.SEARCH, BASELINE), "none")
    printed = at_once(
        url,
        f"""
repository = Repository(url)
for number in range(10):
    if repository.finish_trial({study}, number, Outcome(OutcomeKind.CRASHED, owner)):
        print(number)
""",
    )
    assert sorted(int(number) for numbers in printed for number in numbers) == list(range(10))


def test_a_new_database_is_prepared_by_several_at_once(url: str, at_once: AtOnce) -> None:
    printed = at_once(url, "Repository(url).create_study(owner, dict(seed=1))\nprint(owner)")
    repository = Repository(url)
    assert sorted(study.name for study in repository.studies()) == sorted(name for [name] in printed)
    repository.close()


def test_a_killed_owner_leaves_a_trial_that_can_be_claimed_again(url: str, repository: Repository) -> None:
    study = repository.create_study(f"kill-{os.getpid()}", {}).id
    repository.start_trial(study, NewTrial(Phase.SEARCH, BASELINE), "none")
    repository.requeue_trial(study, 0)
    work = f"""
import os, signal
assert Repository(url).claim_trial({study}, owner) is not None
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = _start()
    _, errors = killed.communicate(json.dumps([url, "killed", work]) + "\n", timeout=60)
    assert killed.returncode == -9, errors
    assert repository.claim_trial(study, "me") is None
    (left,) = repository.records(study)
    assert (left.state, left.owner) == (TrialState.RUNNING, "killed")
    repository.requeue_trial(study, left.trial.number)
    claimed = repository.claim_trial(study, "me")
    assert claimed is not None and claimed.number == 0
    assert repository.finish_trial(study, 0, Outcome(OutcomeKind.CRASHED))
