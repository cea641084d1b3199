"""The comparison with a golden file, and its renewal."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parents[1] / "golden"


def check(name: str, text: str) -> None:
    """Compares a text with its golden file."""
    path = HERE / name
    if os.environ.get("AUTOTUNE_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"there is no {name} yet: AUTOTUNE_GOLDEN=write pytest tests/golden"
    assert text == path.read_text(encoding="utf-8")
