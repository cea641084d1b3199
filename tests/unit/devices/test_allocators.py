"""Allocators that are installed, and the environment that begins a process with one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tuner.child import wire
from tuner.devices import allocators


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One with two of them, one of which is there for debugging only, and a link that leads nowhere."""
    for name in ("libjemalloc.so.2", "libtcmalloc_minimal_debug.so.4", "libtcmalloc.so.4", "libother.so"):
        (tmp_path / name).touch()
    (tmp_path / "libmimalloc.so.2").symlink_to(tmp_path / "gone")
    return tmp_path


def test_those_that_are_there_are_found_by_their_names(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.mktemp("empty")
    found = allocators.installed([empty, folder])
    assert found == {"jemalloc": folder / "libjemalloc.so.2", "tcmalloc": folder / "libtcmalloc.so.4"}
    assert allocators.installed([empty, empty / "none"]) == {}


def test_the_first_folder_counts_and_the_library_without_profiler(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    for name in ("libjemalloc.so.1", "libtcmalloc_minimal.so.4", "libtcmalloc.so.4"):
        (other / name).touch()
    assert allocators.installed([folder, other])["jemalloc"] == folder / "libjemalloc.so.2"
    assert allocators.installed([other, folder])["tcmalloc"] == other / "libtcmalloc_minimal.so.4"


def test_a_path_that_the_loader_would_take_apart_is_none(folder: Path) -> None:
    spaced = folder / "with a space"
    spaced.mkdir()
    (spaced / "libjemalloc.so").touch()
    assert allocators.installed([spaced]) == {}


def test_what_the_user_preloads_stays_before_it(folder: Path) -> None:
    """A sanitizer refuses to start where anything is before it; another allocator of the user's stays in use."""
    library = str(folder / "libjemalloc.so.2")
    assert allocators.environment("jemalloc", {}, [folder]) == {"LD_PRELOAD": library, wire.PRELOADED_ENV: library}
    assert allocators.environment("jemalloc", {"LD_PRELOAD": "libasan.so libmine.so"}, [folder]) == {
        "LD_PRELOAD": f"libasan.so libmine.so:{library}", wire.PRELOADED_ENV: library,
    }
    for nothing in ("mimalloc", "system", 3):
        assert allocators.environment(nothing, {"LD_PRELOAD": "libmine.so"}, [folder]) == {}


def test_a_loader_path_of_the_users_is_searched_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f"relative:{folder}")
    assert allocators.installed()["jemalloc"] == folder / "libjemalloc.so.2"


def test_this_process_has_the_systems() -> None:
    """In a process of its own: the tests may have been started with another one."""
    code = "from tuner.child import allocator; print(allocator.in_use())"
    done = subprocess.run([sys.executable, "-c", code], env={}, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "system"


ROOT = Path(__file__).parents[3]
