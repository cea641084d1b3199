"""A best.json says whether an entry is as it was written, whatever became of its layout."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import made_up, worlds
from support.ran import Ran

from tuner.cli import main
from tuner.documents import plain, text
from tuner.errors import ExitCode, ProfileError
from tuner.export import PROFILE
from tuner.export.profile import merged, profile_of, read, with_standing

WRITTEN = PROFILE.serialize(made_up.RESULT, None) or b""


def edited(**changes: Any) -> bytes:
    document = json.loads(WRITTEN)
    document["profiles"][0].update(changes)
    return json.dumps(document).encode()


def _as_by_javascript(content: bytes) -> bytes:
    """Laid out anew by a tool that knows one kind of number: 1.0 is 1."""
    whole = json.loads(content, parse_float=lambda text: int(float(text)) if float(text).is_integer() else float(text))
    changed = json.dumps(whole).encode()
    assert changed != json.dumps(json.loads(content)).encode(), "there is a number that is written otherwise"
    return changed


def test_an_entry_is_told_from_one_that_was_edited() -> None:
    [profile] = read(WRITTEN, "best.json")
    assert profile.edited is False
    assert read(edited(), "best.json")[0].edited is False, "its layout doesn't matter"
    assert read(_as_by_javascript(WRITTEN), "best.json")[0].edited is False, "nor how its numbers are written"
    assert read(edited(config={"num_workers": 9}), "best.json")[0].edited is True
    assert read(edited(speedup={"ratio": 9.0, "low": 8.0, "high": 10.0}), "best.json")[0].edited is True
    document = json.loads(WRITTEN)
    del document["profiles"][0]["checksum"]
    assert read(json.dumps(document).encode(), "best.json")[0].edited is None, "of an earlier version"


def test_an_entry_of_an_earlier_version_is_as_it_was_written() -> None:
    """Its checksum told 1 from 1.0, and held what was written to the letter."""
    document = json.loads(WRITTEN)
    [entry] = document["profiles"]
    del entry["checksum"]
    earlier = hashlib.sha256(json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    document["profiles"] = [{**entry, "checksum": earlier}]
    assert read(json.dumps(document).encode(), "best.json")[0].edited is False
    document["profiles"][0]["runs"] = 99
    assert read(json.dumps(document).encode(), "best.json")[0].edited is True


def test_the_entries_of_others_stay_as_they_were_written() -> None:
    other = {**json.loads(WRITTEN)["profiles"][0], "device": {**profile_of(made_up.RESULT)["device"], "uuid": "B"}}
    both = merged(merged(None, other, "best.json"), profile_of(made_up.RESULT), "best.json")
    assert [profile.edited for profile in read(both, "best.json")] == [False, False]


def test_a_proof_that_was_edited_does_not_stand() -> None:
    later = {**profile_of(made_up.RESULT), "runs": 0}
    assert with_standing(WRITTEN, made_up.RESULT, later, "best.json") is None
    assert with_standing(edited(speedup=None), made_up.RESULT, later, "best.json") is not None


def test_the_check_of_a_study_finds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Ran(worlds.plan(tmp_path, trials=1), worlds.World().outcome)
    for content, found in ((WRITTEN, False), (edited(runs=99), True)):
        (tmp_path / "best.json").write_bytes(content)
        assert main(["trials", str(tmp_path), "--check"]) == ExitCode.STORAGE, "a made-up machine leaves no records"
        line = "best.json: the profile of cpu was edited since it was written"
        assert (line in capsys.readouterr().err) is found


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
DOCUMENTS = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)


@given(DOCUMENTS)
def test_what_is_written_reads_back_the_same(document: Any) -> None:
    assert json.loads(text(document)) == document
    assert repr(json.loads(text(document))) == repr(json.loads(json.dumps(document)))


def test_a_list_of_numbers_is_on_one_line() -> None:
    rates = {"rates": [[0, 0.1], [10, 0.01]], "names": ["a"], "none": [], "at": [1, None]}
    assert text(rates).splitlines() == [
        "{", '  "rates": [[0, 0.1], [10, 0.01]],', '  "names": [', '    "a"', "  ],", '  "none": [],', '  "at": [',
        "    1,", "    null", "  ]", "}",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="Out of range"):
        text([float("nan")])
    assert text(plain([float("nan")])) == "[\n  null\n]"


@pytest.mark.parametrize("name", ["script", "limits", "knowledge", "config"])
@pytest.mark.parametrize("entry", [None, [], "x"])
@pytest.mark.parametrize("checksum", [True, False])
def test_a_proof_that_was_spoilt_is_replaced_and_loses_no_study_its_result(
    name: str, entry: Any, checksum: bool
) -> None:
    document = json.loads(edited(**{name: entry}))
    if not checksum:
        del document["profiles"][0]["checksum"]
    content = PROFILE.serialize(replace(made_up.RESULT, winner=None), json.dumps(document).encode())
    assert content is not None
    [profile] = read(content, "best.json")
    assert profile.edited is False


@pytest.mark.parametrize("depth", [500, 100_000])
def test_a_file_that_is_nested_too_deeply_is_none(depth: int) -> None:
    """Of another device's entry, which is written again: before a study, and not at its end."""
    content = b'{"schema": 1, "profiles": [{"device": ' + b"[" * depth + b"]" * depth + b"}]}"
    for call in (PROFILE.check, read):
        with pytest.raises(ProfileError, match=r"^best\.json is not a best\.json: "):
            call(content, "best.json")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_file_with_a_number_that_json_has_not_is_none(number: str) -> None:
    """It can't be written again: a study met it at its end, beside its own entry, and lost its result."""
    content = edited(speedup={"ratio": 1.5, "low": 1.25, "high": 777.0}).replace(b"777.0", number.encode())
    for call in (PROFILE.check, read):
        with pytest.raises(ProfileError, match=r"^best\.json is not a best\.json: "):
            call(content, "best.json")
