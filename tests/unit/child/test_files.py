"""What libraries write by themselves goes to the trial's folder, however the script passes the path."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.in_process import Log, session_of

from tuner.child.files import Overlay
from tuner.child.patches import unpatch_all
from tuner.child.torch.files import divert_safetensors, divert_torch


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Overlay]:
    """Of a trial whose folder lies beside the user's."""
    (tmp_path / "project").mkdir()
    yield Overlay(session_of({"folder": str(tmp_path / "trial")}, Log()))
    unpatch_all()


def _torch() -> ModuleType:
    """A module whose functions have the parameters of PyTorch's."""
    module = ModuleType("torch")

    def save(obj: str, f: str, pickle_protocol: int = 2) -> None:
        Path(f).write_text(f"{obj} {pickle_protocol}")

    def load(f: str, map_location: str = "") -> str:
        return Path(f).read_text() + map_location

    vars(module).update(save=save, load=load)
    return module


def _safetensors() -> ModuleType:
    """A module whose functions have the parameters of safetensors'."""
    module = ModuleType("safetensors.torch")

    def save_file(tensors: str, filename: str, metadata: int = 2) -> None:
        Path(filename).write_text(f"{tensors} {metadata}")

    def load_file(filename: str, device: str = "") -> str:
        return Path(filename).read_text() + device

    vars(module).update(save_file=save_file, load_file=load_file)
    return module


def _check(overlay: Overlay, path: Path, save: Callable[..., None], load: Callable[..., str]) -> None:
    """By position and by name; the names are those of the functions' first two parameters."""
    content, place = list(inspect.signature(save).parameters)[:2]
    name = str(path)
    save("a", name, 3)
    assert (load(name), load(**{place: name})) == ("a 3", "a 3")
    save("b", **{place: name})
    assert load(name) == "b 2"
    save(**{place: name, content: "c"})
    assert load(name) == "c 2"
    assert not path.exists() and str(path) in overlay.diverted


def test_pytorchs_checkpoints_are_diverted(tmp_path: Path, overlay: Overlay) -> None:
    module = _torch()
    divert_torch(overlay, module)
    _check(overlay, tmp_path / "project" / "model.pt", module.save, module.load)


def test_checkpoints_of_safetensors_are_diverted(tmp_path: Path, overlay: Overlay) -> None:
    module = _safetensors()
    divert_safetensors(overlay, module)
    _check(overlay, tmp_path / "project" / "model.safetensors", module.save_file, module.load_file)
