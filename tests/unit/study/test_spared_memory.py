"""A study in which memory limits the batch: what spares it is tried, judged and proven as any larger batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.overhead import KNOWN, Overhead, studied

from search_spaces.torch import SPACE
from tuner.analysis.tiers import Tiers
from tuner.model import Config
from tuner.report.summary import summary

SELECTION = ("batch_size", "precision", "checkpointing")
SPARED = replace(KNOWN, as_written={**KNOWN.as_written, "checkpointing": False})


def test_a_batch_that_fits_with_it_only_is_proven_by_its_time_to_a_loss(tmp_path: Path) -> None:
    world = Overhead(fits=32, fits_spared=128, knowledge=SPARED)
    assert world.rate({"batch_size": 128, "checkpointing": True}) > 2 * world.rate({})
    larger = studied(tmp_path, world, selection=SELECTION).result.larger
    assert larger is not None and larger.proven
    assert larger.config["checkpointing"] is True and int(larger.config["batch_size"]) in (64, 128)


def test_it_is_tried_in_no_config_that_keeps_the_batch(tmp_path: Path) -> None:
    ran = studied(tmp_path, Overhead(knowledge=SPARED), selection=SELECTION)
    assert ran.result.larger is not None and ran.result.larger.proven
    assert not any("checkpointing" in trial.config for trial in ran.result.trials)
    assert "checkpointing" not in summary(ran.result, {}, "")


def test_it_counts_as_what_changes_the_numerics() -> None:
    knob = SPACE.knob("checkpointing")
    tiers = Tiers({each.name: each.tier for each in SPACE.knobs}, SPARED)
    assert tiers.of_knob("checkpointing", Config(checkpointing=True)) == knob.tier == 2
