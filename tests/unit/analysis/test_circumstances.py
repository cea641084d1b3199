"""What changed since a config was proven is told by what it is, not by how it is worded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import made_up

from tuner.analysis.circumstances import Change, Circumstances, ProvenPart, changed
from tuner.model import Script

SOFTWARE = {"python": "3.11.0", "torch": "2.13.0"}
PROVEN = Circumstances(made_up.SCRIPT, SOFTWARE, {}, 4)


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
    assert changed(PROVEN, Circumstances(script, software, {}, 4)) == changes


def test_modules_of_the_users_are_told_by_their_path() -> None:
    known = replace(PROVEN, modules={"a.py": "1", "b.py": "2", "c.py": "3", "../d.py": "4"})
    now = replace(PROVEN, modules={"a.py": "1", "b.py": "5", "c.py": ""})
    assert changed(known, now) == [
        Change(ProvenPart.MODULE, "2", "5", "b.py"), Change(ProvenPart.MODULE, "3", "", "c.py")
    ]


def test_another_secret_is_no_other_argument() -> None:
    proven = replace(PROVEN, script=replace(made_up.SCRIPT, argv=("--token", "(hidden)", "--lr", "1")))
    given = replace(made_up.SCRIPT, argv=("--token", "new", "--lr", "1"))
    assert changed(proven, replace(PROVEN, script=given)) == []
    other = replace(made_up.SCRIPT, argv=("--token", "new", "--lr", "2"))
    [change] = changed(proven, replace(PROVEN, script=other))
    assert "new" not in change.now


@pytest.mark.parametrize(("before", "changes"), [
    (None, []), (4, []), (64, [Change(ProvenPart.DEVICE, "64", "4", "cores")]),
])  # fmt: skip
def test_other_cores_are_another_device(before: int | None, changes: list[Change]) -> None:
    assert changed(replace(PROVEN, cores=before), PROVEN) == changes
