"""Studies over the script's own arguments: what they choose between may bring knobs that the baseline hasn't."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import worlds
from support.ran import Ran, of

from search_spaces import batches
from tuner.events import Noted, SpaceResolved
from tuner.knowledge import Knowledge
from tuner.model import Config, Evidence, KnobReport, Outcome, Script
from tuner.space import Knob
from tuner.space.choose import Spaces

ARGUMENT = "--input={input=slow|fast}"
RATES = {"slow": (100.0, 0.9), "fast": (300.0, 0.6)}
"""A faster input that is waited for less: without the wait the loop would look slower."""


def outcome_of(config: Config) -> Outcome:
    """Only the fast input has workers; they help, and so does the number format."""
    chosen = str(config.get("input", "slow"))
    rate, wait = RATES[chosen]
    workers = int(config.get("workers", 0))
    reports: tuple[KnobReport, ...] = ()
    if workers and chosen == "slow":
        reports = (KnobReport("workers", workers, 0, 0, Evidence.NOT_APPLICABLE),)
    rate *= (1.0 + workers / 10) * (1.2 if config.get("precision") == "bf16" else 1.0)
    written: dict[str, Any] = {"precision": "fp32", **({"workers": 0, "prefetch": 2} if chosen == "fast" else {})}
    knowledge = Knowledge(as_written=written, left_out={"batch_size": "made by hand"}, loop=chosen)
    return replace(worlds.measured(rate, wait, knobs=reports), knowledge=knowledge)


def study(folder: Path, trials: int = 12) -> Ran:
    """A study of the script with that argument."""
    return Ran(worlds.plan(folder, trials=trials, script=Script("train.py", (ARGUMENT,), sha256="0" * 64)), outcome_of)


def test_an_argument_is_tried_first_and_judged_by_the_whole_rate(tmp_path: Path) -> None:
    tried = [trial.config for trial in study(tmp_path, 4).result.trials if trial.config]
    assert tried[0] == {"input": "fast"}
    assert all(config["input"] == "fast" for config in tried)


def test_what_another_value_brings_is_searched_beside_it_only(tmp_path: Path) -> None:
    ran = study(tmp_path)
    first, wider = of(ran.events, SpaceResolved)
    assert set(first.values) == {"input", "precision"}
    assert set(wider.values) == {"input", "precision", "workers", "prefetch"}
    assert wider.as_written == {"input": "slow", "precision": "fp32", "workers": 0, "prefetch": 2}
    assert wider.left_out["batch_size"].reason == "made by hand", "what the baseline showed stays as it was"
    assert "with input=fast there is more to turn: workers, prefetch" in [event.text for event in of(ran.events, Noted)]
    turned = [trial.config for trial in ran.result.trials if "workers" in trial.config]
    assert turned and all(config.get("input") == "fast" for config in turned)
    assert ran.result.winner is not None
    assert ran.result.winner.config == {"input": "fast", "workers": 8, "precision": "bf16"}
    asked = next(request for request in ran.runner.requests if "workers" in request.config)
    assert asked.knowledge.as_written["workers"] == 0
    assert asked.knowledge.loop == "slow", "of what both show the baseline's counts"


def test_the_size_of_other_data_does_not_bound_the_batch(tmp_path: Path) -> None:
    """As with a stream beside an array: what the array holds says nothing of the stream."""

    def of_known_size(config: Config) -> Outcome:
        outcome, fast = outcome_of(config), config.get("input") == "fast"
        written = {**outcome.knowledge.as_written, "batch_size": 64}
        shown = Knowledge(framework="torch", as_written=written, dataset_len=100 if fast else None)
        return replace(outcome, knowledge=shown)

    batch_size = Knob("batch_size", batches.batch_sizes, "batch", tier=3, ordered=True)
    space = replace(worlds.SPACE, knobs=(batch_size, *(k for k in worlds.SPACE.knobs if k.name != "batch_size")))
    script = Script("train.py", (ARGUMENT,), sha256="0" * 64)
    plan = worlds.plan(tmp_path, trials=4, script=script, spaces=Spaces((space,)), effective_batch="free")
    first, wider = of(Ran(plan, of_known_size).events, SpaceResolved)
    assert first.values["batch_size"] == (16, 32, 64, 128, 256, 512, 1024)
    assert wider.values["batch_size"] == first.values["batch_size"]


@pytest.mark.slow  # 4 s beside three others
def test_a_resumed_study_searches_the_same_space(tmp_path: Path) -> None:
    unbroken = [trial.config for trial in study(tmp_path / "unbroken", 8).result.trials if trial.round is None]
    study(tmp_path / "broken", 3)
    resumed = study(tmp_path / "broken", 8)
    again = [trial.config for trial in resumed.result.trials if trial.round is None]
    assert {frozenset(config.items()) for config in again} == {frozenset(config.items()) for config in unbroken}
    assert resumed.result.knowledge.as_written["workers"] == 0


@pytest.mark.parametrize("baseline", ["slow", "fast"])
def test_without_new_knobs_the_space_stays(baseline: str, tmp_path: Path) -> None:
    """The other input has nothing that this one lacks, or it fails."""
    other = {"slow": "fast", "fast": "slow"}[baseline]

    def fails(config: Config) -> Outcome:
        chosen = str(config.get("input", baseline))
        if chosen == other and baseline == "slow":
            return worlds.infeasible("oom")
        return outcome_of(Config({**config, "input": chosen}))

    script = Script("train.py", (f"--input={{input={baseline}|{other}}}",), sha256="0" * 64)
    ran = Ran(worlds.plan(tmp_path, trials=4, script=script), fails)
    assert len(of(ran.events, SpaceResolved)) == 1
