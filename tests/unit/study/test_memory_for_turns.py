"""Which trials may be alive at once: those for which machine and device have the memory."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support import worlds

from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Phase, Trial
from tuner.runner.request import Limits
from tuner.study.context import StudyContext

BF16 = Config(precision="bf16")


@pytest.mark.parametrize(
    ("of_device", "known", "together"),
    [
        (40, Knowledge(framework="torch"), True), (46, Knowledge(framework="torch"), False),
        (None, Knowledge(framework="torch"), True), (40, Knowledge(framework="jax"), False),
        (40, Knowledge(framework="keras", backend="tensorflow"), False),
        (40, Knowledge(framework="keras", backend="tensorflow", as_written={"memory_growth": True}), True),
        (40, Knowledge(framework="keras", backend="torch"), True),
    ],
)
def test_what_a_device_has_no_memory_for_at_once_takes_no_turns(
    monkeypatch: pytest.MonkeyPatch, of_device: int | None, known: Knowledge, together: bool
) -> None:
    """A config that wasn't run yet takes as much as the script as written."""
    outcome = worlds.measured(1.0)
    assert outcome.measurement is not None
    measurement = replace(outcome.measurement, peak_host_bytes=1, peak_device_bytes=of_device)
    monkeypatch.setattr("tuner.study.context.host_memory", lambda: (100, 100))
    context: Any = SimpleNamespace(
        executor=SimpleNamespace(obstacle="", kept_bytes=0), baseline=object(),
        knowledge=known,
        trials=[Trial(0, Phase.BASELINE, BASELINE, outcome=replace(outcome, measurement=measurement))],
        plan=SimpleNamespace(limits=Limits(max_device_bytes=90)),
    )  # fmt: skip
    assert StudyContext._may_be_alive(context, [BASELINE, BF16]) is together


@pytest.mark.parametrize(("written", "asked"), [(True, False), (False, True)])
def test_one_that_takes_the_card_ahead_takes_no_turns_though_the_other_grows(written: bool, asked: bool) -> None:
    """The second to start has what the first one left: what that is decides how fast it computes."""
    context: Any = SimpleNamespace(
        executor=SimpleNamespace(obstacle="", kept_bytes=0), baseline=object(), trials=[],
        knowledge=Knowledge(framework="keras", backend="tensorflow", as_written={"memory_growth": written}),
        plan=SimpleNamespace(limits=Limits(max_device_bytes=90)),
    )  # fmt: skip
    assert not StudyContext._may_be_alive(context, [BASELINE, Config(memory_growth=asked)])
    assert StudyContext._may_be_alive(context, [BASELINE, BF16]) is written
