"""Profiles of several devices and numbers of ranks in one best.json."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import made_up

from tuner.cli import main
from tuner.errors import ExitCode
from tuner.export.profile import merged, profile_of, read

CPU = replace(made_up.DEVICE, kind="cpu", name="AMD EPYC", uuid="AMD EPYC", label="cpu")
CARD = replace(made_up.DEVICE, kind="cuda", name="NVIDIA H100", uuid="GPU-1", label="cuda:0")


def written(place: Path, *, device: Any = CPU, ranks: int = 1, sha256: str = "") -> str:
    study = replace(made_up.STUDY, device=device, cores=2, ranks=ranks)
    study = replace(study, script=replace(study.script, sha256=sha256 or "cd" * 32))
    place.write_bytes(merged(None, profile_of(replace(made_up.RESULT, study=study)), str(place)))
    return str(place)


def held(place: Path) -> list[tuple[str, int]]:
    return [(profile.device.kind, profile.ranks) for profile in read(place.read_bytes(), str(place))]


def test_profiles_are_gathered_word_for_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        written(tmp_path / "one.json"),
        written(tmp_path / "two.json", ranks=2),
        written(tmp_path / "card.json", device=CARD),
    ]
    out = tmp_path / "fleet.json"
    assert main(["merge", *files, "--out", str(out)]) == 0
    assert held(out) == [("cpu", 1), ("cpu", 2), ("cuda", 1)]
    profiles = [json.loads(Path(file).read_bytes())["profiles"][0] for file in files]
    assert json.loads(out.read_bytes())["profiles"] == profiles
    said = capsys.readouterr().out
    assert said.startswith(f"{out}: 3 profiles\n") and "AMD EPYC, 2 cores, 2 ranks: " in said
    assert "different scripts" not in said


def test_an_edited_profile_stays_an_edited_one(tmp_path: Path) -> None:
    place = tmp_path / "one.json"
    document = json.loads(Path(written(place)).read_bytes())
    document["profiles"][0]["runs"] = 99
    place.write_text(json.dumps(document), encoding="utf-8")
    assert main(["merge", str(place), "--out", str(tmp_path / "fleet.json")]) == 0
    [profile] = read((tmp_path / "fleet.json").read_bytes(), "fleet.json")
    assert profile.edited


def test_what_is_there_is_kept_and_of_the_same_device_the_last_one_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, one = tmp_path / "fleet.json", written(tmp_path / "one.json")
    card, other = written(tmp_path / "card.json", device=CARD), written(tmp_path / "other.json", sha256="ab" * 32)
    assert main(["merge", one, card, "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["merge", other, "--out", str(out)]) == 0
    assert held(out) == [("cuda", 1), ("cpu", 1)]
    said = capsys.readouterr().out
    assert f"({other}, in place of that of {out})" in said
    assert "they are of 2 different scripts" in said
    assert main(["merge", other, "--out", str(out)]) == 0, "once more, and nothing changes"
    assert held(out) == [("cuda", 1), ("cpu", 1)]


def test_the_one_named_last_counts_however_often_it_is_named(tmp_path: Path) -> None:
    """Also where it is the file that is written, or is written otherwise."""
    out, one, other = tmp_path / "fleet.json", tmp_path / "one.json", tmp_path / "other.json"
    hashes = {}
    for place, sha256 in ((out, "aa" * 32), (one, "bb" * 32), (other, "cc" * 32)):
        hashes[sha256[:2]] = written(place, sha256=sha256)

    def kept(*named: str) -> str:
        written(out, sha256="aa" * 32)
        assert main(["merge", *named, "--out", str(out)]) == 0
        [profile] = read(out.read_bytes(), str(out))
        return profile.script.sha256[:2]

    assert kept(hashes["bb"]) == "bb"
    assert kept(hashes["bb"], hashes["cc"], hashes["bb"]) == "bb"
    assert kept(hashes["bb"], str(out)) == "aa"
    assert kept(hashes["bb"], f"{tmp_path}/./fleet.json") == "aa"


def test_an_entry_without_cores_takes_no_place_of_those_that_say_theirs(tmp_path: Path) -> None:
    """It is of an earlier version, and might be of any of them."""
    older = tmp_path / "older.json"
    document = json.loads(Path(written(older)).read_bytes())
    del document["profiles"][0]["cores"], document["profiles"][0]["checksum"]
    older.write_text(json.dumps(document), encoding="utf-8")
    one, out = written(tmp_path / "one.json"), tmp_path / "fleet.json"
    for _ in range(2):
        assert main(["merge", one, str(older), "--out", str(out)]) == 0
        assert [profile.cores for profile in read(out.read_bytes(), str(out))] == [2, None]


def test_a_device_of_a_later_version_is_gathered_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = written(tmp_path / "later.json", device=replace(CARD, kind="npu", label="npu"))
    assert main(["merge", later, "--out", str(tmp_path / "fleet.json")]) == 0
    assert "  npu: NVIDIA H100: " in capsys.readouterr().out


def test_a_profile_of_another_script_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = written(tmp_path / "one.json"), tmp_path / "other.json"
    document = json.loads(Path(written(other)).read_bytes())
    document["profiles"][0]["script"] |= {"path": "elsewhere/train.py", "sha256": "ef" * 32}
    other.write_text(json.dumps(document), encoding="utf-8")
    assert main(["merge", one, str(other), "--out", str(tmp_path / "fleet.json")]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "of elsewhere/train.py and of " in said and "a file of its own" in said
    assert not (tmp_path / "fleet.json").exists()


def test_nothing_is_written_where_a_file_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, one = tmp_path / "fleet.json", written(tmp_path / "one.json")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    for wrong in ("list.json", "nowhere.json"):
        assert main(["merge", one, str(tmp_path / wrong), "--out", str(out)]) == ExitCode.USAGE
        assert wrong in capsys.readouterr().err
    assert not out.exists()
    out.write_text("mine", encoding="utf-8")
    assert main(["merge", one, "--out", str(out)]) == ExitCode.USAGE
    assert out.read_text(encoding="utf-8") == "mine", "what is no best.json isn't replaced by one"
    assert main(["merge", one, "--out", str(tmp_path)]) == ExitCode.USAGE


def test_a_link_to_the_fleets_file_is_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Renaming put a file of its own in the link's place, and the file that the fleet reads stayed as it was."""
    fleet, link = tmp_path / "fleet.json", tmp_path / "link.json"
    link.symlink_to(fleet)
    assert main(["merge", written(tmp_path / "one.json"), "--out", str(link)]) == 0
    assert main(["merge", written(tmp_path / "card.json", device=CARD), "--out", str(link)]) == 0
    assert link.is_symlink()
    assert held(fleet) == [("cpu", 1), ("cuda", 1)]


def test_a_pipe_is_written_and_never_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert main(["merge", written(tmp_path / "one.json"), "--out", str(pipe)]) == 0
        assert json.loads(os.read(reader, 1 << 20))["profiles"][0]["device"]["kind"] == "cpu"
    finally:
        os.close(reader)
