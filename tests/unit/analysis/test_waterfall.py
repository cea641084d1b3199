"""The chain of changes from the script as written to the fastest trial."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace

import pytest
from support import made_up, worlds

from tuner.analysis.gain import BaselineTrack
from tuner.analysis.waterfall import waterfall
from tuner.model import Config, Evidence, KnobReport, Outcome, Phase, Ratio, Reference, Trial, Value, WaterfallEntry
from tuner.report.trials import TrialsReport
from tuner.report.waterfall import caution, picture, table


def trial(number: int, config: Mapping[str, Value], rate: float | None, phase: Phase = Phase.SEARCH) -> Trial:
    knobs = tuple(KnobReport(knob, value, 1, 1, Evidence.VERIFIED) for knob, value in config.items())
    outcome: Outcome = worlds.infeasible("oom") if rate is None else worlds.measured(rate, knobs=knobs)
    return Trial(number, phase, Config(config), "", outcome)


def search(*tried: tuple[Mapping[str, Value], float | None]) -> list[Trial]:
    """The script as written with 100 samples/s, and what was tried after it."""
    baseline = trial(0, {}, 100.0, Phase.BASELINE)
    return [baseline, *(trial(number, config, rate) for number, (config, rate) in enumerate(tried, start=1))]


def chain(trials: list[Trial]) -> tuple[WaterfallEntry, ...]:
    return waterfall(trials, BaselineTrack(trials, worlds.OBJECTIVE))


def added(trials: list[Trial]) -> list[dict[str, object]]:
    return [dict(change.added) for change in chain(trials)]


def test_each_change_is_compared_with_the_one_before() -> None:
    trials = search(
        ({"input": "fast"}, 200.0), ({"input": "fast", "workers": 1}, 150.0), ({"input": "fast", "cache": True}, 500.0),
        ({"input": "fast", "cache": True, "precision": "bf16"}, None),
        ({"input": "fast", "cache": True, "compile": "on"}, 600.0),
    )  # fmt: skip
    changes = chain(trials)
    assert [dict(change.added) for change in changes] == [{}, {"input": "fast"}, {"cache": True}, {"compile": "on"}]
    assert [change.trial for change in changes] == [0, 1, 3, 5]
    assert [change.gain for change in changes] == pytest.approx([1.0, 2.0, 2.5, 1.2])
    assert [change.total for change in changes] == pytest.approx([1.0, 2.0, 5.0, 6.0])
    assert [[report.knob for report in change.knobs] for change in changes] == [[], ["input"], ["cache"], ["compile"]]


def test_a_change_that_others_were_built_on_stays_without_a_gain_of_its_own() -> None:
    """What computing gains is hidden while the loop waits, and shows once the loader is mended."""
    trials = search(({"precision": "bf16"}, 100.5), ({"precision": "bf16", "workers": 2}, 300.0))
    assert added(trials) == [{}, {"precision": "bf16"}, {"workers": 2}]


def test_what_lost_was_built_on_by_nobody() -> None:
    """A later sampler may come back to a knob that lost alone: both are told as one change."""
    trials = search(
        ({"workers": 2}, 200.0), ({"workers": 2, "threads": 1}, 120.0),
        ({"workers": 2, "threads": 1, "compile": "on"}, 400.0),
    )  # fmt: skip
    assert added(trials) == [{}, {"workers": 2}, {"threads": 1, "compile": "on"}]


def test_a_climb_is_one_change_and_a_value_that_changes_later_another() -> None:
    climbed = search(({"workers": 1}, 150.0), ({"workers": 2}, 200.0), ({"workers": 2, "cache": True}, 300.0))
    assert added(climbed) == [{}, {"workers": 2}, {"cache": True}]
    changed = [*climbed, trial(4, {"workers": 4, "cache": True}, 400.0)]
    assert added(changed) == [{}, {"workers": 2}, {"cache": True}, {"workers": 4}]


def test_a_knob_without_effect_is_no_change() -> None:
    """The trial that set it is the one without it, measured again with more luck."""
    lucky = trial(2, {"workers": 2, "pin": True}, 250.0)
    assert lucky.outcome is not None and lucky.outcome.measurement is not None
    reports = (KnobReport("pin", True, 0, 0, Evidence.NOT_APPLICABLE),)
    measurement = replace(lucky.outcome.measurement, knobs=reports)
    trials = [*search(({"workers": 2}, 200.0)), replace(lucky, outcome=replace(lucky.outcome, measurement=measurement))]
    assert added(trials) == [{}, {"workers": 2}]


def test_true_is_not_one() -> None:
    trials = search(({"cache": True}, 150.0), ({"cache": 1}, 200.0))
    assert added(trials) == [{}, {"cache": 1}]


def test_without_a_gain_the_script_as_written_stands_alone() -> None:
    assert added(search(({"workers": 1}, 90.0))) == [{}]
    assert chain([trial(0, {}, None, Phase.BASELINE)]) == ()
    assert chain([]) == ()


def test_only_the_search_counts() -> None:
    trials = search(({"workers": 1}, 150.0))
    trials.append(replace(trial(2, {"workers": 1}, 900.0), phase=Phase.FINALS, round=1))
    assert [change.measurement.rate for change in chain(trials)] == [100.0, 150.0]


def test_changes_while_the_baseline_drifted_are_rough() -> None:
    trials = [*search(({"workers": 1}, 150.0)), trial(2, {}, 60.0, Phase.ANCHOR)]
    assert [change.rough for change in chain(trials)] == [False, True], "what it is held against is itself"
    *_, row = table(chain(trials), worlds.OBJECTIVE).rows
    assert row[3].startswith("~") and row[4].startswith("~")


def test_changes_whose_turns_scatter_are_rough_as_in_the_list_of_trials() -> None:
    """What follows one is held against it."""
    trials = search(({"workers": 1}, 150.0), ({"workers": 1, "cache": True}, 200.0))
    for number, (low, high) in enumerate(((0.7, 3.2), (1.98, 2.02)), start=1):
        outcome = trials[number].outcome
        assert outcome is not None and outcome.measurement is not None
        reference = Reference(100.0, Ratio(math.sqrt(low * high), low, high), 8)
        beside = replace(outcome.measurement, reference=reference)
        trials[number] = replace(trials[number], outcome=replace(outcome, measurement=beside))
    assert [change.rough for change in chain(trials)] == [False, True, False]
    rows = table(chain(trials), worlds.OBJECTIVE).rows
    assert [[cell.startswith("~") for cell in row[3:5]] for row in rows] == [[False] * 2, [True] * 2, [True, False]]
    assert "turns scatter" in caution(chain(trials))
    listed = TrialsReport(trials, worlds.OBJECTIVE).table().rows
    assert [row[4].startswith("~") for row in listed] == [row[4].startswith("~") for row in rows]


@pytest.mark.parametrize("count", [0, 1, 2, 12])
def test_the_picture_is_xml_that_fits_its_frame(count: int) -> None:
    name = 'a "quoted" <path> & more.py'
    changes = []
    for n in range(count):
        added = Config({f"knob_{n}": "<&>"} if n else {})
        changes.append(WaterfallEntry(n, added, made_up.measured(100.0 / (n + 1)), 1.0, 0.5, 1 / (n + 1), False, ()))
    root = ET.fromstring(picture(changes, name, worlds.OBJECTIVE))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert name in texts
    for n in range(1, count):
        assert f"knob_{n}" in texts and "= <&>" in texts
    for element in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y = float(element.attrib.get("x", 0)), float(element.attrib.get("y", 0))
        assert x >= 0 and y >= 0
        assert x + float(element.attrib["width"]) <= width and y + float(element.attrib["height"]) <= height
