"""kill -9 of any process of a real study, at random moments, through all of its phases: nothing is lost, nothing is
done twice, no process stays, and nobody is blamed for it.

    python -m pytest -s -p no:cacheprovider tests/faults/test_kill_campaign.py

prints the kills by victim and phase. On 2026-11-23, with the four seeds at once on two busy cores, 200 kills over five
studies in 15 minutes, all passed: 94 of the study itself, 62 of fork servers, 17 of a trial's process, 11 of its guard,
6 of the script as written, 6 of its worker, 4 of its guard; 12 in the baseline, 27 in probes, 21 in rotations, 64 in
the search and its anchors, 32 in screens, 26 in finals, 18 between trials or before the first.

Nobody ends what is stopped where its guard and the study are killed within the same moment.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support import study_driver
from support.command import AUTOTUNE
from support.kills import KilledStudy, Process, gone

from tuner.model import Phase, Trial

KILLS = 50
"""Of each seed, over as many studies as it takes; there are four seeds."""
GONE_S = 10.0
STUCK_S = 240.0
"""With no trial begun or ended for so long the study is stuck: the machine may be busy."""
ORPHANED_S = 30.0
"""A stopped process that no living parent leads to is ended within that: when its trial's next turn is due."""
MOST_OF_A_TRIAL = {"study": 2, "standing": 1, "server": 1000, "trial": 1}
"""Three deaths of the study with one trial are taken for that trial's doing (``MOST_STARTS``), a second kill of its own
processes for its own fault, and two of the script as written, as it starts, for that script's."""
MOST_IN_ALL = 3
"""Kills while one trial runs."""
MOST_OF_A_PHASE = 8
"""Kills in one phase of a study, so that they reach all of them."""
WRONG_BLAME = ("failed beside another", "come to its window", "too soon to take turns")
IN_A_STUDY = {"study.db", "study.db-shm", "study.db-wal", ".lock", "trials", "standing", "compile-cache"}
IN_A_TRIAL = {
    "log.txt", "outcome.json", "records.jsonl", "request.json", "resources.jsonl", "late.jsonl", "reference.jsonl",
    "reference-resources.jsonl",
}  # fmt: skip


@dataclass
class Campaign:
    """The kills of one seed."""

    chance: random.Random
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass
class Attacked:
    """One study under attack: what was killed of it, and what was stored of it before the study's last death."""

    study: KilledStudy
    campaign: Campaign
    most: int
    hit: Counter[tuple[int, str]] = field(default_factory=Counter)
    kept: dict[int, str] = field(default_factory=dict)
    orphaned: dict[tuple[int, str], float] = field(default_factory=dict)
    of_phase: Counter[str] = field(default_factory=Counter)
    rows: list[tuple[int, str, str, str, int | None]] = field(default_factory=list)
    moved: float = 0.0

    def run(self) -> None:
        """Starts the study, and again after its deaths, until it has come to its end."""
        self.study.start()
        self.moved = time.monotonic()
        while self.study.process.poll() is None:
            pause = self.campaign.chance.uniform(0.2, 5.0)
            until = time.monotonic() + pause
            while time.monotonic() < until and self.study.process.poll() is None:
                time.sleep(min(0.5, max(0.0, until - time.monotonic())))
                self.look()
            if sum(self.campaign.kills.values()) < self.most and self.study.process.poll() is None:
                self.attack()
        assert self.study.process.returncode == 0, self.study.output()

    def look(self) -> None:
        """Fails where the study is stuck, or something of it is stopped and nobody's."""
        rows = self.study.rows()
        if rows != self.rows:
            self.rows, self.moved = rows, time.monotonic()
        assert time.monotonic() - self.moved < STUCK_S, f"stuck: {self.study.processes()} {self.study.output()}"
        processes = self.study.processes()
        orphans = {(p.pid, p.born) for p in processes.values() if p.state in "Tt" and not self._is_led(p, processes)}
        now = time.monotonic()
        self.orphaned = {one: self.orphaned.get(one, now) for one in orphans}
        late = [pid for (pid, _), since in self.orphaned.items() if now - since > ORPHANED_S]
        assert not late, f"stopped and nobody's: {[processes[pid] for pid in late]}"

    def _is_led(self, one: Process, processes: dict[int, Process]) -> bool:
        """Whether the process is below the study's, not only by the server that adopts what guards leave."""
        above: Process | None = one
        guarded = False
        while above is not None and above.pid != self.study.process.pid:
            guarded = guarded or above.is_guard
            above = processes.get(above.parent)
        return above is not None and guarded

    def attack(self) -> None:
        """Kills one process that may be killed now, chosen by its role first; none where none may."""
        roles = self.study.roles()
        rows = self.study.rows()
        running = [(number, phase) for number, phase, state, *_ in rows if state == "running"]
        numbers = [number for number, _ in running]
        phase = running[0][1] if running else ("between trials" if rows else "before the first trial")
        role, victim = self.choose(roles, numbers)
        if victim is None or self.of_phase[phase] >= MOST_OF_A_PHASE:
            return
        before = self.study.processes()
        if gone({victim.pid: victim}):
            return
        os.kill(victim.pid, signal.SIGKILL)
        if role == "study":
            self.study.process.wait()
        self.campaign.kills[role, phase] += 1
        self.of_phase[phase] += 1
        for number in numbers if rows else [-1]:
            self.hit[number, kind_of(role)] += 1
        with (self.study.folder / "kills.jsonl").open("a") as log:
            log.write(json.dumps([time.time(), role, victim.pid, phase, numbers]) + "\n")
        if role == "study":
            self.after_death(before)

    def choose(self, roles: dict[str, list[Process]], numbers: list[int]) -> tuple[str, Process | None]:
        """A role and one of its processes. A trial is spared a second kill, which nobody could tell from its own fault.
        """
        if any(sum(self.hit[number, kind] for kind in MOST_OF_A_TRIAL) >= MOST_IN_ALL for number in numbers or [-1]):
            return "", None
        allowed = []
        for role in sorted(roles):
            kind = kind_of(role)
            if all(self.hit[number, kind] < MOST_OF_A_TRIAL[kind] for number in numbers):
                allowed.append(role)
        if not allowed:
            return "", None
        role = self.campaign.chance.choice(allowed)
        return role, self.campaign.chance.choice(sorted(roles[role], key=lambda one: one.pid))

    def after_death(self, before: dict[int, Process]) -> None:
        """Nothing of the study lives soon after its own process has died; then it is resumed."""
        deadline = time.monotonic() + GONE_S
        while not (gone(before) and not self.study.processes()):
            if time.monotonic() > deadline:
                pytest.fail(f"alive after the study's death: {self.study.processes()}; before: {before}")
            time.sleep(0.05)
        self.check_kept()
        self.study.start()
        self.moved = time.monotonic()

    def check_kept(self) -> None:
        """What was stored before a kill is stored as it was. A round of the finals that was torn is run again."""
        rows = self.study.rows()
        torn = {round_ for _, phase, state, _, round_ in rows if phase == Phase.FINALS and state != "finished"}
        now = {n: text for n, phase, _, text, round_ in rows if not (phase == Phase.FINALS and round_ in torn)}
        finals = {n for n, phase, *_ in rows if phase == Phase.FINALS}
        for number, text in self.kept.items():
            if number in finals and number not in now:
                continue
            assert now.get(number) == text, f"trial {number} was changed"
        self.kept = {number: text for number, text in now.items() if text}


def kind_of(role: str) -> str:
    """Which of ``MOST_OF_A_TRIAL`` holds for a victim of that role."""
    if role in ("study", "server"):
        return role
    return "standing" if role.endswith("standing") else "trial"


def check_finished(study: KilledStudy) -> None:
    """A study that has come to its end is whole, and leaves what one leaves that nobody has attacked."""
    trials = study_driver.stored_trials(study.study)
    assert [trial.number for trial in trials] == list(range(len(study.rows())))
    searched = [trial.config for trial in trials if trial.phase in (Phase.BASELINE, Phase.SEARCH)]
    assert len(searched) == len(set(searched)) == 7
    blamed = [t for t in trials if t.phase is not Phase.ROTATION and (t.outcome is None or not t.outcome.complete)]
    assert not blamed, [(trial.number, trial.phase, trial.outcome) for trial in blamed]
    check_finals(trials)
    check = [AUTOTUNE, "trials", str(study.study), "--check"]
    checked = subprocess.run(check, capture_output=True, text=True, check=False)
    assert checked.returncode == 0 and "follow from the raw records" in checked.stdout, checked
    said = study.output()
    assert not [text for text in WRONG_BLAME if text in said], said
    deadline = time.monotonic() + GONE_S
    while study.processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not study.processes()
    check_files(study)


def check_finals(trials: tuple[Trial, ...]) -> None:
    """Each round has a run of every finalist, and there are three."""
    finals = [trial for trial in trials if trial.phase is Phase.FINALS]
    assert {trial.round for trial in finals} == {1, 2, 3}
    groups = {trial.group for trial in finals}
    for group in groups:
        rounds = [[t.config for t in finals if (t.round, t.group) == (number, group)] for number in (1, 2, 3)]
        assert all(len(of_round) == len(set(of_round)) for of_round in rounds)
        assert len({frozenset(of_round) for of_round in rounds}) == 1, rounds


def check_files(study: KilledStudy) -> None:
    """No file of a trial that was cut short, beside what its records are kept in."""
    assert {path.name for path in study.study.iterdir()} <= IN_A_STUDY
    for folder in [*(study.study / "trials").iterdir(), *(study.study / "standing").iterdir()]:
        assert folder.name.removesuffix(".disturbed").isdecimal(), folder
        assert {path.name for path in folder.iterdir()} <= IN_A_TRIAL, folder
    # A worker that is killed leaves the folder of its sockets behind, under plain Python as well.
    assert [p.name for p in (study.folder / "tmp").iterdir() if not p.name.startswith("pymp-")] == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_whatever_is_killed_of_a_study_it_comes_to_the_same_end(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = Campaign(random.Random(seed))
    studies = 0
    while sum(campaign.kills.values()) < KILLS:
        study = KilledStudy(tmp_path / str(studies))
        try:
            Attacked(study, campaign, KILLS).run()
        finally:
            study.end()
        check_finished(study)
        studies += 1
    with capsys.disabled():
        print(f"\nseed {seed}: {sum(campaign.kills.values())} kills over {studies} studies")
        for (role, phase), count in sorted(campaign.kills.items()):
            print(f"  {count:3} {role}, {phase}")
