"""PyTorch and safetensors write past ``open``: their checkpoints go to the trial's folder, too."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from ..files import Overlay, reading_first
from ..patches import patch
from .types import Path, Result


def divert_torch(overlay: Overlay, torch: ModuleType) -> None:
    """``torch.save`` writes through C++."""
    patch(torch, "save", lambda original: _writing_second(overlay, original))
    patch(torch, "load", lambda original: reading_first(overlay, original))


def divert_safetensors(overlay: Overlay, module: ModuleType) -> None:
    """``safetensors.torch`` writes through Rust."""
    patch(module, "save_file", lambda original: _writing_second(overlay, original))
    patch(module, "load_file", lambda original: reading_first(overlay, original))


def _writing_second(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def save(content: object, path: Path, *args: object, **kwargs: object) -> Result:
        return original(content, overlay.for_writing(path, always=True), *args, **kwargs)

    return save
