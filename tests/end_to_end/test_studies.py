"""The examples of studies/: each trains as it is, and a study of it sees its steps."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.in_process import ENDLESS

from tuner.cli.settings import read_file
from tuner.runner.created_files import move_created_files
from tuner.space.arguments import parse, render

ROOT = Path(__file__).parents[2]
STUDIES = sorted(path.parent for path in (ROOT / "studies").glob("*/study.toml"))
SHORT = {
    "digits": ["--epochs", "1"],
    "digits_ddp": ["--epochs", "1"],
    "photos": ["--epochs", "1", "--crops", "64", "--val-crops", "32"],
    "keras_digits": ["--epochs", "1"],
    "keras_photos": ["--epochs", "1", "--crops", "64", "--val-crops", "32"],
    "jax_digits": ["--epochs", "1"],
    "waterfall": ["--epochs", "1", "--crops", "64"],
}


@pytest.fixture(
    params=[
        pytest.param(folder, id=folder.name, marks=() if folder.name == "digits" else pytest.mark.slow)
        for folder in STUDIES
    ]
)
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the folder: what the script writes beside itself is not left in the repository."""
    folder: Path = request.param
    copy = tmp_path / folder.name
    copy.mkdir()
    for name in ("train.py", "study.toml"):
        shutil.copy(folder / name, copy)
    return copy


def arguments(folder: Path) -> list[str]:
    """What the study gives the script as written, and what makes it short."""
    settings = read_file(folder / "study.toml")
    return [*render(settings.get("args", ()), {}), *SHORT[folder.name]]


@pytest.mark.slow
def test_an_example_trains_without_us(example: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "train.py", *arguments(example)], cwd=example, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "loss" in ran.stdout


def test_a_trial_of_an_example_counts_its_samples(example: Path, run_child: Callable[..., Any]) -> None:
    ran = run_child(example / "train.py", argv=tuple(arguments(example)), window=ENDLESS, timeout=240.0)
    assert ran.returncode == 0, ran.output[-2000:]
    rows = 1437 if "digits" in example.name else 64
    assert (ran.facts["unit"], ran.facts["samples"]) == ("samples", rows)
    move_created_files(ran.folder)
    assert list(example.glob("checkpoints/*")) == [], "a trial keeps its checkpoints to itself"


def test_each_example_is_told_of() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {folder.name for folder in STUDIES} == set(SHORT)
    for folder in STUDIES:
        assert f"(studies/{folder.name})" in readme
        assert (folder / "README.md").is_file()
        assert {"script", "trials", "budget"} <= read_file(folder / "study.toml").keys()


@pytest.mark.slow
def test_the_waterfalls_inputs_make_the_same_batches(tmp_path: Path) -> None:
    """Turning one into the other changes the speed and nothing that is learned from."""
    folder = ROOT / "studies" / "waterfall"
    assert list(parse(read_file(folder / "study.toml")["args"])) == ["input"]
    check = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(folder)!r})
import numpy as np, train
folder = Path({str(tmp_path / "crops")!r})
train.cut_crops(folder, 32, 384, 0)
files, labels = train.list_files(folder)
by_hand, targets = next(train.generate(files, labels, 32, 0))
(by_graph, others), *_ = train.build_dataset(files, labels, 32).take(1)
assert by_hand.shape == by_graph.shape and by_hand.dtype == by_graph.numpy().dtype
assert sorted(targets) == sorted(others.numpy())
def marks(images, labels):
    return np.array(sorted((label, *image.mean(axis=(0, 1))) for image, label in zip(images, labels)))
print(abs(marks(by_hand, targets) - marks(by_graph.numpy(), others.numpy())).max())
"""
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert float(ran.stdout.split()[-1]) < 0.02
