"""Parsers of command lines beside argparse, of versions that nobody has tried."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tuner.child import parsers
from tuner.child.adapter import Adapter
from tuner.child.parsers import ParsersAdapter

PLACES = {"tyro._calling": "callable_with_args", "fire.core": "_MakeParseFn", "hydra.core.utils": "run_job"}
"""Module → the function of it that is watched."""


@pytest.mark.parametrize("name", PLACES)
def test_a_library_that_is_made_otherwise_works_as_by_itself(name: str) -> None:
    """Its script's options aren't seen then."""
    told: list[Any] = []
    options = SimpleNamespace(parsed=lambda *given: told.append(given), is_wanted=True)
    module: Any = ModuleType(name)
    setattr(module, PLACES[name], lambda *given: (lambda *more: (given, more)))
    made_of: Callable[[Any], Adapter] = ParsersAdapter
    made_of(SimpleNamespace(options=options)).libraries[name].install(module)
    made = getattr(module, PLACES[name])(1, 2)
    assert made(3) == ((1, 2), (3,)) and not told


@pytest.mark.parametrize(
    ("given", "named"),
    [("+x.batch_size=64", "+x.batch_size="), ("++x.batch_size=64", "++x.batch_size="), ("x.batch_size=64", None),
     ("+x.batch_size_2=64", None), ("--x.batch_size", None)],
)  # fmt: skip
def test_a_field_that_the_user_adds_to_hydras_config_keeps_its_plus(
    monkeypatch: pytest.MonkeyPatch, given: str, named: str | None
) -> None:
    """The hint to bind it was ``x.batch_size=``, which Hydra refuses."""
    monkeypatch.setattr(sys, "argv", ["train.py", "seed=1", given])
    assert parsers._override("x.batch_size") == (named or "x.batch_size=")
