"""What a replayed CUDA graph wrote over, and was read all the same: told in a line, and no fault of the user's."""

from __future__ import annotations

import pytest

from tuner.child.records import Hello, Record, ScriptException
from tuner.model import OutcomeKind
from tuner.runner.classify import Traces, classify


@pytest.mark.parametrize("of", ["tensor", "gradient tensor"])
def test_what_a_replay_wrote_over_is_told_in_a_line(of: str) -> None:
    """PyTorch's own text (2.13), behind which stands where the tensor was made, and what to do about it."""
    read = f"accessing {of} output of CUDAGraphs that has been overwritten by a subsequent run"
    text = f'Error: {read}. Stack trace: File "train.py", line 9, in forward\n  return x + 1. To prevent overwriting, …'
    records: list[Record] = [Hello(1, "3.11.0", "/usr/bin/python"), ScriptException("RuntimeError", text, "", "script")]
    judgement = classify(Traces(records, baseline=False, status=1 << 8))
    assert judgement == (OutcomeKind.INFEASIBLE, "overwritten", f"RuntimeError: {read}")
