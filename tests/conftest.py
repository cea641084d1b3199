"""Fixtures shared by all tests."""

from __future__ import annotations

import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# What is imported here is needed by every test: `make check-cuda` runs where there is little beside PyTorch.
pytest_plugins = [
    "support.skips", "support.again", "support.disturbed", "support.order", "support.postgresql", "support.examples",
    "support.children", "support.undurable", "support.frozen", "support.late", "support.leaving",
]  # fmt: skip

NUMBERS = itertools.count()


@pytest.fixture
def torch_settings_kept() -> Iterator[None]:
    """PyTorch's own settings are those of the whole process: the next test has them as they were."""
    import torch

    from tuner.child.devices import settings

    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    put_back_rounding = settings.kept(torch)
    yield
    put_back_rounding()
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = benchmark


@pytest.fixture
def write_script(tmp_path: Path) -> Callable[..., Path]:
    """Writes a script into the test's folder."""

    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a distribution with one module and its entry points, as pip would leave it on sys.path."""

    def make(module: str, source: str, **points: str) -> None:
        site = tmp_path / "site"
        record = site / f"{module}-1.0.dist-info"
        record.mkdir(parents=True)
        (site / f"{module}.py").write_text(textwrap.dedent(source))
        (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (record / "entry_points.txt").write_text(
            "".join(f"[autotune.{group}]\n{text}\n" for group, text in points.items())
        )
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return make


@pytest.fixture(autouse=True)
def environment_kept() -> Iterator[None]:
    """A variable that a library sets on its way stays with the test: with one more, no script would be forked
    (``support/children.py``), and each would import PyTorch anew.
    """
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


@pytest.fixture(scope="session", autouse=True)
def locks_of_these_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """So it is with what fixtures of a module run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(autouse=True)
def locks_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a study that runs on this machine, nor for another test.

    By a number of its own: ``mktemp`` reads the names of all that were made before, thousands at last.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "caches" / str(next(NUMBERS))))
