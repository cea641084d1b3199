"""A file of results, a JSON line each, that a benchmark goes on with after it was ended at any moment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def finished(path: Path) -> list[dict[str, Any]]:
    """The lines written so far; one that a kill tore is cut off, so that what it was of is done again."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Adds the line."""
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
