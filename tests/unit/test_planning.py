"""What happens to an earlier study when a new one is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.cli.planning import set_aside
from tuner.errors import StorageError
from tuner.lock import FolderLock
from tuner.plan import DATABASE


def study_in(folder: Path) -> Path:
    folder.mkdir()
    (folder / DATABASE).write_text("earlier", encoding="utf-8")
    return folder


def test_an_earlier_study_is_moved_to_the_next_free_name(tmp_path: Path) -> None:
    (tmp_path / "study.1").mkdir()
    assert set_aside(tmp_path / "study") is None
    folder = study_in(tmp_path / "study")
    assert set_aside(folder) == tmp_path / "study.2"
    assert not folder.exists()
    assert (tmp_path / "study.2" / DATABASE).read_text(encoding="utf-8") == "earlier"


def test_a_study_that_is_running_is_not_moved(tmp_path: Path) -> None:
    folder = study_in(tmp_path / "study")
    with FolderLock(folder), pytest.raises(StorageError, match="running already"):
        set_aside(folder)
    assert (folder / DATABASE).exists()
