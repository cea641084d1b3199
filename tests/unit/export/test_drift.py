"""What changed since a config was proven is told by what it is, not by how it is worded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import made_up

from tuner.export.profile import Change, Profile, ProvenPart, drift
from tuner.knowledge import Knowledge
from tuner.model import Script, Verdict

SOFTWARE = {"python": "3.11.0", "torch": "2.13.0"}
PROVEN = Profile(made_up.DEVICE, made_up.CONFIG, Verdict.IMPROVED, made_up.SCRIPT, SOFTWARE, Knowledge(), 1.4)


@pytest.mark.parametrize(
    ("script", "software", "changes"),
    [
        (made_up.SCRIPT, SOFTWARE, []),
        (
            replace(made_up.SCRIPT, sha256="cd" * 32), SOFTWARE,
            [Change(ProvenPart.SCRIPT, "ab" * 32, "cd" * 32)],
        ),
        (
            replace(made_up.SCRIPT, argv=()), SOFTWARE,
            [Change(ProvenPart.ARGUMENTS, "--epochs 3 --name 'first try'", "none")],
        ),
        (
            made_up.SCRIPT, {"python": "3.12.1", "kernel": "6.1"},
            [
                Change(ProvenPart.SOFTWARE, "absent", "6.1", "kernel"),
                Change(ProvenPart.SOFTWARE, "3.11.0", "3.12.1", "python"),
                Change(ProvenPart.SOFTWARE, "2.13.0", "absent", "torch"),
            ],
        ),
    ],
)  # fmt: skip
def test_each_change_names_what_changed(script: Script, software: dict[str, str], changes: list[Change]) -> None:
    assert drift(PROVEN, script, software, {}, 4) == changes


def test_modules_of_the_users_are_told_by_their_path() -> None:
    known = replace(PROVEN, knowledge=Knowledge(module_hashes={"a.py": "1", "b.py": "2", "c.py": "3", "../d.py": "4"}))
    now = {"a.py": "1", "b.py": "5", "c.py": ""}
    assert drift(known, made_up.SCRIPT, SOFTWARE, now, 4) == [
        Change(ProvenPart.MODULE, "2", "5", "b.py"), Change(ProvenPart.MODULE, "3", "", "c.py")
    ]


def test_another_secret_is_no_other_argument() -> None:
    proven = replace(PROVEN, script=replace(made_up.SCRIPT, argv=("--token", "(hidden)", "--lr", "1")))
    assert drift(proven, replace(made_up.SCRIPT, argv=("--token", "new", "--lr", "1")), SOFTWARE, {}, 4) == []
    [change] = drift(proven, replace(made_up.SCRIPT, argv=("--token", "new", "--lr", "2")), SOFTWARE, {}, 4)
    assert "new" not in change.now


@pytest.mark.parametrize(("before", "changes"), [
    (None, []), (4, []), (64, [Change(ProvenPart.DEVICE, "64", "4", "cores")]),
])  # fmt: skip
def test_other_cores_are_another_device(before: int | None, changes: list[Change]) -> None:
    assert drift(replace(PROVEN, cores=before), made_up.SCRIPT, SOFTWARE, {}, 4) == changes
