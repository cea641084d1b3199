"""What PyTorch's compiler counts, read from the compiler itself: it counts for the whole process."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import logging, torch
from tuner.child.torch import compiler
logging.disable(logging.WARNING)
shapes = torch.compile(lambda x, word: x.sin() + len(word), backend="eager", dynamic=False)
for length in range(LENGTHS):
    shapes(torch.ones(3), "a" * length)
counts = compiler.counts()
print(counts.graphs, counts.given_up, counts.without_cuda_graph)
"""


def _counted(lengths: int) -> list[int]:
    code = SCRIPT.replace("LENGTHS", str(lengths))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


@pytest.mark.slow
def test_code_that_is_given_up_after_too_many_compilations_is_counted() -> None:
    assert _counted(3) == [3, 0, 0]
    graphs, given_up, _ = _counted(12)
    assert graphs < 12
    assert given_up >= 1
