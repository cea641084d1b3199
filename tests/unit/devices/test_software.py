"""With what Keras is set to compute, without importing it: as Keras itself reads its variable and its file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.devices.software import keras_backend

READS = "import keras.src.backend.config as c; print(c.backend())"


@pytest.mark.parametrize(
    ("variable", "file", "expected"),
    [
        ("jax", '{"backend": "torch"}', "jax"),
        ("", '{"backend": "torch"}', "torch"),
        (None, '{"backend": "torch"}', "torch"),
        (None, "{}", "tensorflow"),
        (None, None, "tensorflow"),
        (None, "no JSON", "tensorflow"),
        (None, "[1]", "tensorflow"),
        (None, '{"backend": 3}', "tensorflow"),
    ],
)
def test_the_variable_comes_before_the_file(
    tmp_path: Path, variable: str | None, file: str | None, expected: str
) -> None:
    if file is not None:
        (tmp_path / "keras.json").write_text(file, encoding="utf-8")
    named = {} if variable is None else {"KERAS_BACKEND": variable}
    assert keras_backend({"KERAS_HOME": str(tmp_path), **named}) == expected


def test_without_a_home_that_can_be_written_to_its_file_lies_in_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.devices.software.HOMELESS", str(tmp_path))
    (tmp_path / ".keras").mkdir()
    (tmp_path / ".keras" / "keras.json").write_text('{"backend": "torch"}', encoding="utf-8")
    assert keras_backend({"HOME": str(tmp_path / "none")}) == "torch"
    (tmp_path / "home").mkdir()
    assert keras_backend({"HOME": str(tmp_path / "home")}) == "tensorflow"


@pytest.mark.slow  # Keras itself, in a process of its own
@pytest.mark.parametrize(("variable", "backend"), [({}, "torch"), ({"KERAS_BACKEND": "jax"}, "jax")])
def test_keras_says_the_same(tmp_path: Path, variable: dict[str, str], backend: str) -> None:
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "torch"}), encoding="utf-8")
    others = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    variables = {**others, "KERAS_HOME": str(tmp_path), **variable}
    ran = subprocess.run([sys.executable, "-c", READS], env=variables, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == keras_backend(variables) == backend
