"""PyTorch and safetensors write past ``open``: their checkpoints go to the trial's folder, too."""

from __future__ import annotations

from types import ModuleType

from ..files import Overlay, reading_first, writing_second
from ..patches import patch


def divert_torch(overlay: Overlay, torch: ModuleType) -> None:
    """``torch.save`` writes through C++."""
    patch(torch, "save", lambda original: writing_second(overlay, original))
    patch(torch, "load", lambda original: reading_first(overlay, original))


def divert_safetensors(overlay: Overlay, module: ModuleType) -> None:
    """``safetensors.torch`` writes through Rust."""
    patch(module, "save_file", lambda original: writing_second(overlay, original))
    patch(module, "load_file", lambda original: reading_first(overlay, original))
