"""Loops of JAX on several devices of one process: steps, samples of all of them, losses, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[2]
FOUR_DEVICES = "--xla_force_host_platform_device_count=4"
PROGRAM = TESTS / "support" / "jax_devices.py"
LATE = frozenset({"gradients over shards", "mapped gradients", "parts of the gradient of one array"})
"""Updates are by hand and outside: the last step isn't counted."""
COUNTED = [("sharded", ""), ("over shards", "in all"), ("mapped", "on each"), ("mapped, one array", "")]
FURTHER = [
    ("sharded", "in all"), ("by in_shardings", ""), ("by in_shardings", "in all"), ("parameters in shards", ""),
    ("over shards", ""), ("over shards, eagerly", ""), ("gradients over shards", ""),
    ("over shards, by its older name", ""), ("mapped", ""), ("mapped", "in all"), ("mapped, parameters for all", ""),
    ("mapped, donated, by a dictionary", ""), ("mapped gradients", ""), ("on one of them", ""),
    ("parts of the gradient of one array", ""),
]  # fmt: skip
REFUSED = {
    "one after the other": "the script hands its devices their parts one after the other, each by a call of its own",
    "over another dimension": "the script maps over another dimension than the first one (in_axes of jax.pmap)",
}
Told = Mapping[tuple[str, str], dict[str, Any]]


def ran(*given: str) -> list[Any]:
    """What the program prints, line by line."""
    found = [*filter(None, [str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-W", "ignore", str(PROGRAM), *given]
    variables = {"PYTHONPATH": os.pathsep.join(found), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": FOUR_DEVICES}
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def told_of(cases: list[tuple[str, str]]) -> Told:
    return {(name, stated): told for name, stated, told in ran(json.dumps(cases))}


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    """Of the cases that each run looks at."""
    yield told_of([*COUNTED, ("one after the other", "")])


@pytest.fixture(scope="module")
def told_further() -> Iterator[Told]:
    """Of the others."""
    yield told_of([*FURTHER, ("over another dimension", "")])


def is_counted(name: str, told: dict[str, Any]) -> None:
    assert isinstance(told, dict), told
    (steps, samples), (updates, rows) = told["counted"], told["done"]
    late = name in LATE
    assert (steps, samples, told["failures"]) == (updates - late, rows - 20 * late, []), told
    assert (told["unit"], told["devices"]) == ("samples", 1 if name == "on one of them" else 4)
    assert told["losses"] or name == "over shards, eagerly"
    assert max(told["losses"], default=0.0) < 1e-6


@pytest.mark.slow  # 8 s beside three others
@pytest.mark.parametrize(("name", "stated"), COUNTED)
def test_samples_of_all_devices_together_are_counted(told: Told, name: str, stated: str) -> None:
    """Whether the script states what all of them are given, or each one."""
    is_counted(name, told[name, stated])
    assert told[name, stated]["written"] == 20


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stated"), FURTHER)
def test_further_ways_to_several_devices_are_counted(told_further: Told, name: str, stated: str) -> None:
    is_counted(name, told_further[name, stated])


def test_devices_that_are_served_one_after_the_other_are_told_why_they_are_not_studied(told: Told) -> None:
    (failure,) = told["one after the other", ""]["failures"]
    assert failure.startswith(REFUSED["one after the other"])


@pytest.mark.slow
def test_a_map_over_another_dimension_is_told_why_it_is_not_studied(told_further: Told) -> None:
    (failure,) = told_further["over another dimension", ""]["failures"]
    assert failure.startswith(REFUSED["over another dimension"])


@pytest.mark.slow
def test_a_block_ends_when_the_slowest_device_has_ended() -> None:
    assert ran("ready") == [[True] * 4]
