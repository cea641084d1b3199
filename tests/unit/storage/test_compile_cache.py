"""What lies in a compile cache is run: one that was made by others, or elsewhere, is thrown away first."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tuner.storage import compile_cache


def test_ones_own_is_kept(tmp_path: Path) -> None:
    folder = compile_cache.own(tmp_path / "study" / "cache")
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "kernel.so").write_text("mine")
    assert compile_cache.is_own(folder)
    assert (compile_cache.own(folder) / "kernel.so").read_text() == "mine"


def test_there_is_nothing_wrong_with_none(tmp_path: Path) -> None:
    assert compile_cache.is_own(tmp_path / "cache")


def test_a_copy_of_somebodys_study_is_not_run(tmp_path: Path) -> None:
    theirs = compile_cache.own(tmp_path / "theirs" / "cache")
    (theirs / "kernel.so").write_text("evil")
    shutil.copytree(tmp_path / "theirs", tmp_path / "mine")
    mine = tmp_path / "mine" / "cache"
    assert not compile_cache.is_own(mine)
    assert not (compile_cache.own(mine) / "kernel.so").exists()
    assert compile_cache.is_own(mine)
    assert (theirs / "kernel.so").exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    theirs = compile_cache.own(tmp_path / "theirs")
    (theirs / "kernel.so").write_text("evil")
    link = tmp_path / "cache"
    link.symlink_to(theirs)
    assert not compile_cache.is_own(link)
    assert not (compile_cache.own(link) / "kernel.so").exists()
    assert (theirs / "kernel.so").exists(), "what it led to is nobody's to remove"


def test_what_others_may_write_to_is_not_run(tmp_path: Path) -> None:
    folder = compile_cache.own(tmp_path / "cache")
    (folder / "kernel.so").write_text("evil")
    folder.chmod(0o777)
    assert not compile_cache.is_own(folder)
    assert not (compile_cache.own(folder) / "kernel.so").exists()


def test_one_of_another_user_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = compile_cache.own(tmp_path / "cache")
    user = os.geteuid()
    monkeypatch.setattr("tuner.storage.compile_cache.os.geteuid", lambda: user + 1)
    assert not compile_cache.is_own(folder)
