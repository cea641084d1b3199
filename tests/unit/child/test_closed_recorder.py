"""The descriptor of the records where the script closes what it doesn't know, as a daemon does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tuner.child.recorder import Recorder
from tuner.child.records import Note


@pytest.mark.parametrize("taken", [True, False])
def test_no_record_gets_into_a_file_that_took_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], taken: bool
) -> None:
    reads, writes = os.pipe()
    recorder = Recorder(writes)
    recorder.emit(Note("before"))
    os.close(writes)
    file = os.open(tmp_path / "weights.bin", os.O_CREAT | os.O_WRONLY)
    try:
        assert file == writes, "the lowest number that is free"
        if not taken:
            os.close(file)
        for _ in range(2):
            recorder.emit(Note("behind"))
        assert (tmp_path / "weights.bin").read_bytes() == b""
        assert os.read(reads, 1 << 16).count(b"\n") == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and f"the script has closed descriptor {writes}, which was autotune's" in said
    finally:
        os.close(reads)
        if taken:
            os.close(file)


def test_a_parent_that_is_gone_is_no_fault_of_the_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    reads, writes = os.pipe()
    recorder = Recorder(writes)
    os.close(reads)
    recorder.emit(Note("behind"))
    os.close(writes)
    recorder.emit(Note("once more"))
    assert capsys.readouterr().err == ""
