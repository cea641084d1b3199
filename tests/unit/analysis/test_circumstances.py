"""What changed since a config was proven is told by what it is, not by how it is worded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import made_up

from tuner.analysis.circumstances import Change, Circumstances, ProvenPart, apart, changed
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


HASHES = st.dictionaries(st.sampled_from(["a.py", "b.py"]), st.sampled_from(["", "1", "2"]))
MEASURED = st.builds(
    lambda sha256, argv, modules, software, cores, backend: Circumstances(
        Script("train.py", argv, sha256=sha256), software, modules, cores, backend
    ),
    st.sampled_from(["", "1", "2"]), st.sampled_from([(), ("--lr", "1")]), HASHES,
    st.sampled_from([{}, SOFTWARE]), st.sampled_from([None, 4]), st.sampled_from(["", "jax"]),
)  # fmt: skip


@given(MEASURED, MEASURED)
def test_how_two_differ_is_the_same_from_either_side(one: Circumstances, other: Circumstances) -> None:
    turned = [replace(change, before=change.now, now=change.before) for change in apart(other, one)]
    assert apart(one, other) == turned


@given(MEASURED, MEASURED, MEASURED)
def test_two_that_are_like_a_third_are_alike(one: Circumstances, third: Circumstances, other: Circumstances) -> None:
    if not apart(one, third) and not apart(third, other):
        assert not apart(one, other)


def test_a_module_that_one_side_alone_knows_sets_them_apart() -> None:
    known, unknown = replace(PROVEN, modules={"a.py": "1", "b.py": ""}), replace(PROVEN, modules={"a.py": "1"})
    assert apart(known, known) == [Change(ProvenPart.MODULE, "", "", "b.py")], "it was edited meanwhile"
    assert apart(replace(PROVEN, modules={"a.py": "1"}), PROVEN) == [Change(ProvenPart.MODULE, "1", "", "a.py")]
    assert apart(unknown, replace(unknown, cores=64)) == []


def test_another_backend_of_keras_is_other_software() -> None:
    on_jax = replace(PROVEN, backend="jax")
    assert apart(replace(PROVEN, backend="tensorflow"), on_jax) == [
        Change(ProvenPart.SOFTWARE, "tensorflow", "jax", "Keras' backend")
    ]
    assert changed(on_jax, PROVEN) == [], "which backend a script takes is known once it runs"
