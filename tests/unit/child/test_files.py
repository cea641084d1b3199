"""What libraries write by themselves goes to the trial's folder, however the script passes the path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.in_process import Log, session_of

from tuner.child.files import Overlay
from tuner.child.patches import unpatch_all
from tuner.child.torch.files import divert_safetensors, divert_torch

Divert = Callable[[Overlay, ModuleType], None]


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


@pytest.mark.parametrize(
    ("module", "divert", "save", "load", "content", "path"),
    [
        (_torch(), divert_torch, "save", "load", "obj", "f"),
        (_safetensors(), divert_safetensors, "save_file", "load_file", "tensors", "filename"),
    ],
)
def test_a_checkpoint_is_diverted_by_position_and_by_name(
    tmp_path: Path, overlay: Overlay, module: ModuleType, divert: Divert, save: str, load: str, content: str, path: str
) -> None:
    divert(overlay, module)
    name = str(tmp_path / "project" / "model.pt")
    calls: list[tuple[tuple[object, ...], dict[str, object]]] = [
        (("a", name, 3), {}), (("a", name), {}), (("a",), {path: name}), ((), {path: name, content: "a"}),
    ]  # fmt: skip
    for arguments, keywords in calls:
        getattr(module, save)(*arguments, **keywords)
        assert not Path(name).exists()
        assert getattr(module, load)(name)[0] == "a" == getattr(module, load)(**{path: name})[0]
