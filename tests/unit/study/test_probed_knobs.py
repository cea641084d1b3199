"""The knobs that ``autotune probe`` names are those that a study would turn."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from support import worlds

from search_spaces.torch import SPACE
from tuner.analysis.bottleneck import worth_turning
from tuner.model import Config, Outcome, Value
from tuner.runner.replay import ReplayRunner
from tuner.space.choose import Spaces
from tuner.space.resolved import ResolvedSpace
from tuner.study.probe import probe

WRITTEN: dict[str, Value] = {"batch_size": 64, "grad_accumulation": 1, "lr_scale": 1.0, "checkpointing": False}


def probed(folder: Path, plan: dict[str, Any] | None = None, **known: Any) -> tuple[tuple[str, ...], ResolvedSpace]:
    """The knobs that are told as worth tuning, and the space."""

    def outcome(config: Config) -> Outcome:
        ran = worlds.measured(100.0)
        knowledge = replace(ran.knowledge, framework="torch", as_written=WRITTEN, loss_reduction="mean", **known)
        return replace(ran, knowledge=knowledge)

    studied = worlds.plan(folder, spaces=Spaces((SPACE,)), **plan or {})
    bottleneck, space, _ = probe(studied, ReplayRunner(outcome), lambda name, ran: None, threading.Event())
    return worth_turning(bottleneck, space), space


def test_a_probe_names_no_accumulation_that_a_study_derives_from_the_batch(tmp_path: Path) -> None:
    """It was named beside a batch size that can't be turned: such a config makes another training."""
    named, space = probed(tmp_path, left_out={"batch_size": "no DataLoader feeds the training steps"})
    assert "grad_accumulation" not in named
    assert space.left_out["grad_accumulation"].reason.startswith("follows batch_size")


def test_a_probe_names_the_larger_batches_that_a_study_tries(tmp_path: Path) -> None:
    named, space = probed(tmp_path, batch_norm=True)
    assert "batch_size" in named
    assert "checkpointing" not in space.left_out, "larger batches are tried, which it spares memory for"


def test_a_probe_asks_for_the_effective_batch_that_the_user_wants(tmp_path: Path) -> None:
    named, space = probed(tmp_path, {"effective_batch": "keep"}, batch_norm=True)
    assert "batch_size" not in named and "checkpointing" in space.left_out
