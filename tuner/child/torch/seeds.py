"""PyTorch's seeds, shifted as all others are."""

from __future__ import annotations

from types import ModuleType

from ..patches import patch
from ..seeds import shifted


def seed(shift: int, torch: ModuleType) -> None:
    """Seeds every generator, and shifts what the script seeds. ``torch.manual_seed`` seeds the accelerators, too."""
    torch.manual_seed(shift)
    patch(torch, "manual_seed", shifted(shift))
    patch(torch.cuda, "manual_seed", shifted(shift))
    patch(torch.cuda, "manual_seed_all", shifted(shift))
