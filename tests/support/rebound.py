"""What is found of the call of a training step in a script, by its bytecode and its source."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tuner.child.jax.rebinding import Rebinding, Rebindings

HEAD = "import contextlib, sys\na, b, c, x = [0], [1], [2], [3]\nlog = {}\n"


def seen(text: str, folder: Path, *, is_edited: bool = False) -> Rebinding:
    """What is found of the last call of ``step`` in a script."""
    rebindings, found = Rebindings(), list[Rebinding]()

    def step(*args: Any, **kwargs: Any) -> Any:
        found.append(rebindings.at(sys._getframe(1)))
        return [4], [5]

    path = folder / "train.py"
    path.write_text(HEAD + text)
    code = compile(HEAD + text, str(path), "exec", dont_inherit=True)
    if is_edited:
        path.write_text(HEAD + "log[0] = 1\n" + text)
    exec(code, {"__name__": "__main__", "step": step})
    return found[-1]
