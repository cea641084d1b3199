"""Before the script runs: a request that can't be read is a fault of ours, and is said to be one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tuner.child
from tuner.child import wire
from tuner.child.execute import UNREADABLE

CHILD = Path(tuner.child.__file__).parent / "__main__.py"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "can't be read"),
        ("[]", "request is [], not an object"),
        (json.dumps({"config": {"batch_size": None}}), "request.config.batch_size is None"),
        pytest.param(
            json.dumps({"knowledge": {"steps": "many"}}), "request.knowledge.steps is 'many', not a whole number",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            json.dumps({"window": {"block_s": "short"}}), "request.window.block_s is 'short', not a number",
            marks=pytest.mark.slow,
        ),
        (json.dumps({"probe": "both"}), "request.probe is 'both'"),
    ],
)
def test_a_request_that_cannot_be_read_ends_the_trial_before_the_script(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "request.json").write_text(text)
    reader, writer = os.pipe()
    environment = {
        **os.environ, wire.REQUEST_ENV: str(tmp_path / "request.json"), wire.RECORDS_ENV: str(writer)
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, str(CHILD)], env=environment, pass_fds=[writer], capture_output=True, text=True, check=False
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as records:
        assert list(wire.decode(records)) == [], "not even that the child is up"
    assert ran.returncode == UNREADABLE
    assert says in ran.stderr and "a fault of its own" in ran.stderr
    assert "Traceback" not in ran.stderr
