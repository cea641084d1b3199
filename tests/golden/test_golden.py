"""What people and programs read, compared with the files beside: for one made-up study, letter by letter.

``AUTOTUNE_GOLDEN=write pytest tests/golden`` writes the files anew; the difference is then read in the commit.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console
from support import made_up, made_up_keras
from support.golden_files import check

from tuner.cli.tables import WIDE, drawn
from tuner.events import Event, SpaceResolved, StudyStarted, TrialFinished, TrialStarted
from tuner.export import PROFILE
from tuner.export.profile import read
from tuner.formatting import rotated_text, rotation_text
from tuner.model import Config, LeftOut, Phase, Ratio, Rotated, Trial, Verdict
from tuner.objective import RATE, amortised
from tuner.progress.live import draw
from tuner.progress.plain import PlainView
from tuner.progress.state import State, row_of, started_text
from tuner.report.summary import summary
from tuner.report.trials import TrialsReport
from tuner.result import LackOfTime, LargerBatch, StudyResult

BEST = f"{made_up.FOLDER}/best.json"
GAVE_WAY = replace(
    made_up.RESULT, winner=replace(made_up.KEEP, config=Config(num_workers=2)),
    lacked_time=LackOfTime(made_up.CONFIG, 1.3871, 720.0, made_up.CONFIG),
)  # fmt: skip
SUMMARIES: dict[str, StudyResult] = {
    "improved": made_up.RESULT,
    "keras": made_up_keras.RESULT,
    "screened": replace(made_up.RESULT, screened=made_up.SCREENED, bests=made_up.BESTS),
    "keep": replace(made_up.RESULT, winner=made_up.KEEP, screened=made_up.SCREENED),
    "gave_way": GAVE_WAY,
    "untold": replace(made_up.RESULT, winner=None, screened=(made_up.UNTOLD,)),
    "unproven": replace(made_up.RESULT, winner=None, why="stopped on request", interrupted=True),
    "no_time": replace(made_up.RESULT, winner=None, why="the time for searching is used up (300 s in all)"),
    "learns_worse": replace(
        made_up.RESULT, winner=None, screened=(replace(made_up.SCREENED[1], config=made_up.CONFIG),)
    ),
    "broken_by_us": replace(
        made_up.RESULT, winner=made_up.KEEP, broke_it=("loader",), fault=f"{made_up.FOLDER}/fault.txt",
        left_out={**made_up.RESULT.left_out, "num_workers": LeftOut("the watch loader is off")},
    ),
    "larger": made_up.WITH_LARGER,
    "larger_alone": made_up.with_larger(made_up.KEEP),
    "larger_unproven": made_up.with_larger(
        made_up.KEEP, LargerBatch(made_up.LARGER_CONFIG, 2.97, why="no time left to compare how it learns"),
        screened=(), more=(made_up.MORE_LARGER,),
    ),
    "larger_not_sooner": made_up.with_larger(
        made_up.KEEP,
        replace(
            made_up.LARGER, sooner=Ratio(1.21, 0.97, 1.51), why="it isn't shown to reach a loss sooner",
            winner=replace(made_up.LARGER.winner or made_up.WINNER, verdict=Verdict.KEEP_BASELINE),
        ),
    ),
    "larger_and_nothing_else": replace(
        made_up.with_larger(made_up.KEEP), winner=None, best=made_up.BASELINE, screened=(made_up.LARGER_SCREENED,),
        bests=(),
    ),
    "larger_not_tried": replace(
        made_up.RESULT, no_larger="steps are counted, and not their samples: batches of other sizes can't be compared"
    ),
    "planned": replace(
        made_up.RESULT, objective=amortised(RATE, 50_000),
        winner=replace(made_up.WINNER, speedup=Ratio(1.3412, 1.2951, 1.3893)),
    ),
    "planned_and_no_time": replace(made_up.RESULT, objective=amortised(RATE, 50_000), winner=None),
    "drifted": replace(made_up.RESULT, winner=made_up.KEEP, shifts=(made_up.SHIFT,)),
    "nothing_faster": replace(
        made_up.RESULT, trials=(made_up.BASELINE, made_up.SEARCHED[5]), winner=None, best=made_up.BASELINE
    ),
    "nothing_tried": replace(
        made_up.RESULT, trials=(made_up.BASELINE,), winner=None, best=made_up.BASELINE, left_out={}
    ),
    "nothing_known": replace(
        made_up.RESULT, trials=(), winner=None, best=None, why="stopped on request", interrupted=True, left_out={},
        bottleneck=None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SUMMARIES)
def test_the_summary(case: str) -> None:
    result = SUMMARIES[case]
    files = {"result": BEST} if result.best is not None else {}
    check(f"summary_{case}.txt", summary(result, files, files.get("result", "")))


def test_plain_lines() -> None:
    written = io.StringIO()
    view = PlainView(Console(file=written, width=80))
    for event in made_up.events():
        view(event)
    check("progress.txt", written.getvalue())


def test_a_resumed_study_says_so() -> None:
    written = io.StringIO()
    started = made_up.events()[0]
    assert isinstance(started, StudyStarted)
    told = [event for event in made_up.events() if isinstance(event, TrialFinished)]
    for earlier, said in (
        (told[:1], ["resuming after 1 trial", "as written: 1,204 samples/s, 31% data wait"]),
        (
            told[:6],
            [
                "as written: 1,204 samples/s, 31% data wait",
                "best so far, not proven yet: num_workers=2 precision=bf16, 1.39x",
            ],
        ),
    ):
        PlainView(Console(file=written, width=80))(replace(started, resumed=True, earlier=tuple(earlier)))
        assert written.getvalue().splitlines()[-len(said) :] == said


def test_what_finals_have_judged_is_not_said_to_be_unproven() -> None:
    """Whoever gave the command of a finished study again read "not proven yet" of the winner."""
    started, *events = made_up.events()
    assert isinstance(started, StudyStarted)
    earlier = tuple(event for event in events if isinstance(event, TrialFinished))
    written, state = io.StringIO(), State()
    again = replace(started, resumed=True, earlier=earlier)
    PlainView(Console(file=written, width=80))(again)
    said = "best so far, by its single trial: num_workers=2 precision=bf16, 1.39x"
    assert written.getvalue().splitlines()[-1] == said
    state.see(again, 0.0)
    assert state.best_text == said


def screen(events: list[Event], columns: int, lines: int, *, stopping: bool = False) -> str:
    """The live view after the events, each of which took a second and a half."""
    state = State()
    for number, event in enumerate(events):
        state.see(event, 1.5 * number)
    state.stopping = stopping
    written = io.StringIO()
    console = Console(file=written, width=columns, height=lines, force_terminal=True, color_system=None)
    console.print(draw(state, 1.5 * len(events), console))
    return "".join(f"{line.rstrip()}\n" for line in written.getvalue().splitlines())


def _resumed(told: list[Event]) -> list[Event]:
    """The same study in another process: what was tried before comes with its start."""
    started = told[0]
    assert isinstance(started, StudyStarted)
    earlier = tuple(event for event in told[:16] if isinstance(event, TrialFinished))
    space = next(event for event in told if isinstance(event, SpaceResolved))
    running = next(event for event in told[16:] if isinstance(event, TrialStarted))
    return [replace(started, resumed=True, earlier=earlier), space, running]


def test_the_live_view() -> None:
    told = made_up.events()
    finals = next(i for i, event in enumerate(told) if getattr(event, "rounds", 0) and hasattr(event, "candidates"))
    moments = {
        "in its baseline": screen(told[:2], 80, 24),
        "searching": screen(told[:12], 80, 24),
        "told to stop": screen(told[:10], 80, 24, stopping=True),
        "in its finals": screen(told[: finals + 7], 120, 30),
        "done": screen(told, 120, 30),
        "resumed": screen(_resumed(told), 80, 24),
        "of many trials on a small screen": screen(made_up.long_configs(40), 60, 16),
    }
    check("live.txt", "".join(f"--- {moment}\n{text}" for moment, text in moments.items()))


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("lines", [16, 24, 50])
def test_the_live_view_fits_the_screen(columns: int, lines: int) -> None:
    text = screen(made_up.long_configs(40), columns, lines)
    assert all(len(line) <= columns for line in text.splitlines())
    assert "trial 41:" in text
    if columns >= 60:
        assert len(text.splitlines()) <= lines
        assert text.count("1.00x") > 2, "the gains were pushed off the screen"


def test_an_anchor_counts_as_no_trial_of_the_search() -> None:
    state = State()
    for event in made_up.events():
        state.see(event, 0.0)
    searched = [t for t in made_up.TRIALS if t.phase in (Phase.BASELINE, Phase.SEARCH)]
    assert state.search_done == len(searched)


@pytest.mark.parametrize(
    ("name", "trials"),
    [
        ("trials", made_up.TRIALS),
        ("trials_card", made_up.on_a_card()),
        ("trials_keras", made_up_keras.TRIALS),
    ],
)
def test_the_table_of_trials(name: str, trials: Sequence[Trial]) -> None:
    written = io.StringIO()
    Console(file=written, width=WIDE).print(drawn(TrialsReport(trials, RATE).table()))
    check(f"{name}.txt", "".join(f"{line.rstrip()}\n" for line in written.getvalue().splitlines()))


def test_a_rotation_is_shown_as_what_it_is() -> None:
    """A line while the study runs, a row and footnotes of the table, and what the summary says of it."""
    said = (
        Rotated(Config(precision="bf16", channels_last=True), Ratio(1.83, 1.71, 1.96), 5),
        Rotated(Config(threads=1), Ratio(0.62, 0.55, 0.7), 5),
        Rotated(Config(optimizer="fused"), None, 0, "the process ended while it had its turn"),
    )
    outcome = replace(made_up.BASELINE.outcome, rotation=said)  # type: ignore[type-var]
    trial = Trial(30, Phase.ROTATION, Config(), "3 configs in one process", outcome)
    trials = (*made_up.TRIALS, trial)
    row, report = row_of(trial, None, best=False), TrialsReport(trials, RATE)
    told = summary(replace(made_up.RESULT, trials=trials), {}, "").splitlines()
    shown = [started_text(trial), f"{row.config}: {row.result}", "  ".join(report.table().rows[-1])]
    lines = [*shown, *report.footnotes(), *(line for line in told if "in one process" in line)]
    hidden = tuple(replace(each, without_wait=True) for each in said)
    lines += ["where others' turns fill the queue:", rotation_text(hidden), *(rotated_text(each) for each in hidden)]
    check("rotation.txt", "".join(f"{line.rstrip()}\n" for line in lines))


def test_the_trials_as_json() -> None:
    known = replace(made_up.BEST, outcome=replace(made_up.BEST.outcome, measurement=made_up.FASTER))  # type: ignore[type-var]
    documents = TrialsReport((*made_up.TRIALS[:3], known), RATE).documents()
    documents.append(TrialsReport(made_up.on_a_card(), RATE).documents()[2])
    check("trials.json", json.dumps(documents, indent=2) + "\n")


PROFILES: dict[str, StudyResult] = {
    "improved": made_up.RESULT,
    "keras": made_up_keras.RESULT,
    "screened": replace(made_up.RESULT, screened=made_up.SCREENED, bests=made_up.BESTS),
    "keep": replace(made_up.RESULT, winner=made_up.KEEP),
    "unproven": replace(made_up.RESULT, winner=None),
    "gave_way": GAVE_WAY,
    "larger": made_up.WITH_LARGER,
}


@pytest.mark.parametrize("case", PROFILES)
def test_best_json(case: str) -> None:
    content = PROFILE.serialize(PROFILES[case], None)
    assert content is not None
    check(f"best_{case}.json", content.decode())
    [profile] = read(content, "best.json")
    winner = PROFILES[case].winner
    assert profile.config == (winner.config if winner is not None and winner.verdict is Verdict.IMPROVED else {})
    assert profile.device == made_up.DEVICE


def test_a_gain_in_the_finals_is_that_of_its_own_round() -> None:
    """Held against the first baseline, a machine that has become slower would show every candidate as slow."""
    for trial in made_up.FINALS:
        own = TrialsReport(made_up.TRIALS, RATE).gain(trial)
        assert own == pytest.approx(1.0 if not trial.config else trial.outcome.measurement.rate / 1190.0)  # type: ignore[union-attr]
