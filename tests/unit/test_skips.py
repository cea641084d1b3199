"""A skip for any other reason than missing hardware fails the run, wherever it is said and however the run is split."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.skips import has_cuda

from tuner.devices.cuda import CudaKind

TESTS = Path(__file__).parents[1]
# With no other plugin: to import them all takes most of the time.
BARE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
# Run on a made-up machine that has a TPU and no CUDA device.
PRELUDE = """
import pytest
import support.skips
support.skips.HARDWARE = {"cuda": lambda: False, "tpu": lambda: True}
"""
SKIPS = PRELUDE + """
WHIM = pytest.mark.skip(reason="a whim")
@pytest.fixture
def skips(): pytest.skip("a whim")
@pytest.fixture
def fails(): raise AssertionError("nothing is made for a test that is skipped")

def test_passes(): pass
def test_in_its_call(): pytest.skip("a whim")
@WHIM
def test_by_a_mark(): pass
@pytest.mark.skipif(True, reason="a whim")
def test_on_a_condition(): pass
def test_by_a_fixture(skips): pass
@pytest.mark.tpu
def test_with_hardware_that_is_there(): pytest.skip("a whim")
@pytest.mark.parametrize("x", [pytest.param(1, marks=WHIM)])
def test_by_a_parameter(x): pass
@pytest.mark.cuda
def test_without_hardware(fails): pass
@pytest.mark.tpu
def test_with_hardware(): pass
@pytest.mark.xfail(strict=True)
def test_as_expected(): raise ValueError
"""
FAILED = {
    "in_its_call", "by_a_mark", "on_a_condition", "by_a_fixture", "with_hardware_that_is_there", "by_a_parameter",
}  # fmt: skip


def _run(folder: Path, options: list[str], **modules: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest with the plugin on these modules."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    cuda: c\n    tpu: t\n")
    for name, source in modules.items():
        (folder / f"test_{name}.py").write_text(source)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rsEf", "-p", "xdist", "-p", "support.skips", "-p", "no:cacheprovider",
         *options],
        cwd=folder, env={**os.environ, **BARE, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "options", [[], pytest.param(["-n", "2"], marks=pytest.mark.slow)], ids=["one process", "two workers"]
)
def test_a_skip_is_a_failure_but_for_missing_hardware(tmp_path: Path, options: list[str]) -> None:
    ran = _run(tmp_path, options, skips=SKIPS)
    assert ran.returncode == 1, ran.stdout
    assert set(re.findall(r"^(?:FAILED|ERROR) \S+::test_(\w+)", ran.stdout, re.M)) == FAILED
    assert ran.stdout.count("skipped, though no hardware is missing: ") >= len(FAILED)
    assert re.findall(r"^SKIPPED \[1\] .*: (.*)", ran.stdout, re.M) == ["there is no CUDA device"]
    assert "2 passed, 1 skipped, 1 xfailed" in ran.stdout


def test_a_module_that_skips_itself_is_an_error(tmp_path: Path) -> None:
    whim = "import pytest\npytest.skip('a whim', allow_module_level=True)\n"
    missing = "import pytest\npytest.importorskip('no_such_library')\ndef test(): pass\n"
    ran = _run(tmp_path, ["--continue-on-collection-errors"], whim=whim, missing=missing, fine="def test(): pass\n")
    assert ran.returncode == 1, ran.stdout
    assert set(re.findall(r"^ERROR test_(\w+)", ran.stdout, re.M)) == {"whim", "missing"}
    assert "skipped, though no hardware is missing: Skipped: a whim" in ran.stdout
    assert "1 passed, 2 errors" in ran.stdout


@pytest.mark.parametrize("cards", [[], ["cuda:0"]])
def test_without_pytorch_the_driver_is_asked_for_a_card(cards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test-jax` has no PyTorch: each test of a card was an error there."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(CudaKind, "find", lambda kind: cards)
    assert has_cuda.__wrapped__() is bool(cards)
