"""What a program is told that gets no file in memory at all; that one is had: end_to_end/test_cli_run.py."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path

import pytest

from tuner.errors import StorageError
from tuner.runner.memory_file import memory_file


def test_it_is_empty_and_no_other_program_has_it() -> None:
    descriptor = memory_file("autotune-test")
    try:
        assert os.fstat(descriptor).st_size == 0 and not os.get_inheritable(descriptor)
        assert "autotune-test" in os.readlink(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def test_without_a_temporary_folder_either_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a C library of before 2018, which has no such function."""
    monkeypatch.setattr(ctypes, "CDLL", lambda *given, **named: object())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(StorageError, match="no file can be made in memory, nor a temporary one: No such file"):
        memory_file("autotune-test")
