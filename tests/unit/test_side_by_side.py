"""Side by side: what decides the table. Nothing is measured twice, and ours isn't flattered."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import side_by_side
from json_lines import append, finished
from side_by_side_answers import Answer, Task, document_of
from side_by_side_duets import measuring, pair, plan_of
from side_by_side_table import Results, Row, against, check_same, document, results_of, row_of, section, table
from support import worlds

from tuner.cli.script import find_script
from tuner.errors import ExitCode, UsageError
from tuner.model import BASELINE, Config, Ratio
from tuner.runner.replay import ReplayRunner

HEADER = {
    "kind": "header", "script": "train.py", "minutes": 3.0, "rounds": 4, "script_sha256": "a", "arguments": [],
    "device": "a processor", "cores": 2, "software": "python 3", "day": "2026-11-23",
}  # fmt: skip


def answer(name: str, config: dict[str, Any], **fields: Any) -> dict[str, Any]:
    line = document_of(Answer(name, Config(config)), fields.pop("asked", name), fields.pop("changes", ""))
    return {**line, **fields}


def pairs(config: dict[str, Any], *gains: float, calm: bool = True, first: int = 1) -> list[dict[str, Any]]:
    return [
        {"kind": "pair", "config": config, "round": first + place, "written": 100.0, "candidate": 100.0 * gain,
         "calm": calm, "unit": "samples", "knobs": dict.fromkeys(config, "verified")}
        for place, gain in enumerate(gains)
    ]  # fmt: skip


def rows(text: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in cells[2:]}


# The table


def test_a_gain_is_that_of_the_pairs_with_its_interval() -> None:
    config = {"num_workers": 2}
    results = results_of([HEADER, answer("autotune", config), *pairs(config, 1.9, 2.0, 2.0, 2.1)])
    row = row_of(results.answers[0], results)
    assert row.gain is not None and row.gain.ratio == pytest.approx(1.999, abs=0.002)
    assert 1.8 < row.gain.low < 1.95 and 2.05 < row.gain.high < 2.2
    assert rows(table(results))["autotune"][:2] == ["`num_workers=2`", "2.00x [1.87, 2.13]"]


def test_what_isnt_proven_is_as_written_and_so_is_what_fails() -> None:
    config = {"batch_size": 4096}
    failed = {"kind": "pair", "config": config, "round": 1, "failed": "infeasible: no memory"}
    results = results_of([HEADER, answer("autotune", {}), answer("finder", config), failed])
    text = rows(table(results))
    assert text["autotune"][1] == "1.00x (as written)"
    assert text["finder"][1] == "1.00x (fails: infeasible: no memory)"
    assert text["finder"][2] == "1.00x [1.00, 1.00] level"
    assert results.left() == [], "it isn't tried again"


def test_autotune_is_held_against_each_by_the_same_rounds() -> None:
    own, other = {"num_workers": 1}, {"num_workers": 2}
    lines = [HEADER, answer("autotune", own), answer("b", other), *pairs(own, 2.0, 2.1, 1.9, 2.0)]
    results = results_of([*lines, *pairs(other, 2.2, 2.31, 2.09, 2.2)])
    found = against(*(row_of(line, results) for line in results.answers))
    assert found is not None and found.ratio == pytest.approx(1 / 1.1) and found.high < 1
    assert rows(table(results))["b"][2].endswith("behind")
    assert rows(table(results))["autotune"][2] == ""
    fewer = results_of([*lines, *pairs(other, 1.0, first=4)])
    assert against(*(row_of(line, fewer) for line in fewer.answers)) is None
    nobody = results_of([HEADER, answer("autotune", {}), answer("b", other), *pairs(other, 1.2, 1.21, 1.19, 1.2)])
    assert rows(table(nobody))["b"][2].endswith("behind"), "ours proved nothing, and isn't better than as written"


def test_what_changes_the_training_is_said_and_stands_beside_our_larger_batch() -> None:
    big, ours_big = {"batch_size": 1024}, {"batch_size": 256, "lr_scale": 2.0}
    lines = [
        HEADER, answer("autotune", {}, asked="autotune"),
        answer("autotune, tier 3", ours_big, asked="autotune", changes="effective batch x4; learning rate x2"),
        answer("finder", big, changes="effective batch x16; learning rate as written"),
        answer("list", {"precision": "bf16"}, changes="numerics: precision"),
    ]  # fmt: skip
    measured = [*pairs(ours_big, 3.0, 3.1, 2.9, 3.0), *pairs(big, 2.0, 2.1, 1.9, 2.0)]
    text = rows(table(results_of([*lines, *measured])))
    assert text["finder"][3] == "no: effective batch x16; learning rate as written"
    assert text["list"][3] == "but for rounding (precision)" and text["autotune"][3] == "yes"
    keeping, larger = text["finder"][2].split("; tier 3: ")
    assert keeping.endswith("behind") and larger.endswith("ahead")
    assert "tier 3" not in text["list"][2]


def test_disturbed_pairs_are_left_out_where_three_others_are() -> None:
    config = {"num_workers": 2}
    few = [*pairs(config, 2.0, 2.0), *pairs(config, 9.0, 9.0, calm=False, first=3)]
    all_count = row_of(answer("a", config), results_of([HEADER, *few]))
    assert all_count.all_count and all_count.gain is not None and all_count.gain.ratio > 4
    enough = [*pairs(config, 2.0, 2.0, 2.0), *pairs(config, 9.0, calm=False, first=4)]
    calm = row_of(answer("a", config), results_of([HEADER, *enough]))
    assert not calm.all_count and calm.gain is not None and calm.gain.ratio == pytest.approx(2.0)
    told = results_of([HEADER, answer("a", config), *few])
    assert "disturbed" in rows(table(told))["a"][1] and "**Rough**" in section(told)
    assert "**Rough**" not in section(results_of([HEADER, answer("a", config), *enough]))


def test_a_knob_that_isnt_in_effect_is_named_and_so_is_who_is_left_out() -> None:
    config = {"channels_last": True}
    lines = [{**line, "knobs": {"channels_last": "not applicable"}} for line in pairs(config, 1.0, 1.0)]
    gone = answer("finder", {}, missing="it is for torch", said="")
    text = table(results_of([HEADER, answer("list", config, said="half of it"), gone, *lines]))
    assert "- list: not seen to be in effect: channels_last (not applicable)." in text
    assert "- finder isn't in the table: it is for torch." in text and "finder" not in rows(text)
    assert "- list: half of it." in text


def test_a_document_has_a_table_a_script_and_says_what_isnt_finished() -> None:
    config = {"num_workers": 2}
    half = results_of([HEADER, answer("autotune", config), *pairs(config, 2.0)])
    text = document([half, results_of([{**HEADER, "script": "other.py"}])], "python it")
    assert "### train.py" in text and "### other.py" in text and text.count("**Not finished**") == 1
    assert rows(table(half))["autotune"][1] == "1 of 4 pairs measured" and "`python it`" in text


# What is left to do


def test_rounds_go_by_turns_and_each_config_is_measured_once_whoever_says_it() -> None:
    one, other = Config(num_workers=1), Config(num_workers=2)
    lines = [answer("a", {"num_workers": 1}), answer("b", {"num_workers": 2}), answer("c", {"num_workers": 1}),
             answer("d", {})]  # fmt: skip
    results = results_of([{**HEADER, "rounds": 2}, *lines])
    assert results.left() == [(1, one), (1, other), (2, one), (2, other)]
    going = results_of([{**HEADER, "rounds": 2}, *lines, *pairs({"num_workers": 1}, 1.0)])
    assert going.left() == [(1, other), (2, one), (2, other)]
    assert going.has("a") and not going.has("e")


def test_a_line_that_was_torn_is_done_again(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    append(file, HEADER)
    append(file, answer("a", {"num_workers": 1}))
    with file.open("a") as out:
        out.write('{"kind": "pair", "conf')
    assert [line["kind"] for line in finished(file)] == ["header", "answer"]
    append(file, pairs({"num_workers": 1}, 2.0)[0])
    assert [line["kind"] for line in finished(file)] == ["header", "answer", "pair"]


@pytest.mark.parametrize(("key", "value"), [("script_sha256", "b"), ("minutes", 5.0), ("rounds", 9), ("cores", 4)])
def test_results_of_other_circumstances_are_refused(key: str, value: object) -> None:
    check_same(HEADER, {**HEADER, "day": "2027-01-01"})
    with pytest.raises(UsageError, match=key):
        check_same(HEADER, {**HEADER, key: value})
    with pytest.raises(UsageError, match="header"):
        results_of([answer("a", {})])


class Ended(Exception):
    """Stands for a kill."""


def test_what_was_ended_goes_on_with_the_pair_that_it_was_at(tmp_path: Path) -> None:
    plan, file = worlds.plan(tmp_path / "duets"), tmp_path / "results.jsonl"
    lines = [{**HEADER, "rounds": 3}, answer("a", {"workers": 2}), answer("b", {"precision": "fp16"})]
    for line in lines:
        append(file, line)
    measured: list[tuple[int, Config]] = []

    def measure(study: Any, config: Config, number: int, rounds: int, group: int) -> dict[str, Any]:
        if len(measured) == 3:
            raise Ended
        measured.append((number, config))
        return pair(study, config, number, rounds, group)

    def on_world() -> ReplayRunner:
        return ReplayRunner(worlds.World(noise=0.01).outcome)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side_by_side, "measuring", lambda plan, trials: measuring(plan, trials, runner=on_world))
        with pytest.raises(Ended):
            side_by_side.measure_all(plan, file, measure)
        assert measured == [(1, Config(workers=2)), (1, Config(precision="fp16")), (2, Config(workers=2))]
        measured.clear()
        side_by_side.measure_all(plan, file, pair)
    results = results_of(finished(file))
    assert results.is_measured and len(results.pairs_of(Config(workers=2))) == 3
    assert results.failure_of(Config(precision="fp16")) == "infeasible: made-up nan"
    row = row_of(results.answers[0], results)
    true = worlds.World().truth(Config(workers=2))[0] / worlds.World().truth(BASELINE)[0]
    assert row.gain is not None and row.gain.ratio == pytest.approx(true, rel=0.05)


def test_who_has_answered_isnt_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_script: Callable[..., Path]
) -> None:
    script = str(write_script("raise SystemExit('it was run')"))
    plan = worlds.plan(tmp_path / "duets", script=find_script(script, "", ()), source=Path(script))
    file, options = tmp_path / "results.jsonl", argparse.Namespace(only=["autotune", "checklist"], minutes=1.0)
    append(file, HEADER)
    asked: list[str] = []

    def answers(name: str, task: Task) -> list[Answer]:
        assert task.minutes == 1.0 and task.knowledge.as_written["batch_size"] == 64
        asked.append(name)
        if asked == ["autotune", "checklist"]:
            raise Ended
        return [Answer(name, Config(workers=2)), Answer(f"{name} too", Config(batch_size=128))]

    monkeypatch.setattr(side_by_side, "answers_of", answers)
    runner = ReplayRunner(worlds.World().outcome)
    monkeypatch.setattr(side_by_side, "measuring", lambda plan: measuring(plan, runner=lambda: runner))
    with pytest.raises(Ended):
        side_by_side.answer_all(plan, "train.py", file, options)
    side_by_side.answer_all(plan, "train.py", file, options)
    assert asked == ["autotune", "checklist", "checklist"]
    told = {line["alternative"]: line["changes"] for line in results_of(finished(file)).answers}
    larger = "effective batch x2; learning rate as written"
    assert told == {"autotune": "", "autotune too": larger, "checklist": "", "checklist too": larger}


def test_tables_are_written_anew_without_running_anything(
    tmp_path: Path, write_script: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    script, out = str(write_script("raise SystemExit('it was run')")), tmp_path / "out"
    given = [script, "--rounds", "4", "--out", str(out), "--device", "cpu", "--table"]
    assert side_by_side.main([*given, "--minutes", "3"]) == ExitCode.STORAGE
    assert "there are no results" in capsys.readouterr().err
    plan, config = plan_of(script, tmp_path / "new", "cpu"), {"num_workers": 2}
    assert plan.limits.trial_timeout_s == 600 and plan.budget_s is None and plan.trials is None
    folder = out / plan.name
    folder.mkdir(parents=True)
    lines = [side_by_side.header_of(plan, 3.0, 4), answer("autotune", config), *pairs(config, 2.0, 2.0, 2.0, 2.1)]
    for line in lines:
        append(folder / "results.jsonl", line)
    assert side_by_side.main([*given, "--minutes", "3"]) == 0
    text = (out / "results.md").read_text()
    assert rows(text)["autotune"][1].startswith("2.0") and str(tmp_path) not in text.split("\n### ")[1]
    assert [path.name for path in folder.iterdir()] == ["results.jsonl"]
    assert side_by_side.main([*given, "--minutes", "5"]) == ExitCode.USAGE
    assert "minutes was 3.0, now 5.0" in capsys.readouterr().err


def test_pairs_are_run_in_a_balanced_order(tmp_path: Path) -> None:
    def on_world() -> ReplayRunner:
        return ReplayRunner(worlds.World().outcome)

    with measuring(worlds.plan(tmp_path / "duets"), runner=on_world) as study:
        lines = [pair(study, Config(workers=2), number, 4, 1) for number in (1, 2, 3, 4)]
    assert sorted(line["first"] for line in lines) == ["as written"] * 2 + ["candidate"] * 2


def test_two_that_say_the_same_are_level() -> None:
    empty = Row(answer("a", {}), Ratio(1.0, 1.0, 1.0))
    assert against(empty, empty) == Ratio(1.0, 1.0, 1.0)
    assert Results(HEADER).left() == []
