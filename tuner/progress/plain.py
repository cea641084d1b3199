"""A study as lines of text: for logs, pipes and terminals that can't move a cursor."""

from __future__ import annotations

import os
import time
from types import TracebackType

from rich.console import Console

from tuner.events import (
    Event,
    FinalsStarted,
    Noted,
    PairFinished,
    Probed,
    Screening,
    SpaceResolved,
    StudyFinished,
    StudyStarted,
    TrialFinished,
    TrialStarted,
)
from tuner.formatting import (
    bottleneck_text,
    budget_text,
    count_text,
    device_text,
    result_text,
    script_text,
    value_text,
)
from tuner.model import Phase
from tuner.progress.state import BEHIND, State, pair_text, screening_text, started_text

STOPPING = "stopping: finishing with the best so far (Ctrl-C again quits at once)"


class PlainView:
    """A listener that writes a line an event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._state = State()

    def __enter__(self) -> PlainView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __call__(self, event: Event) -> None:
        """Takes one event."""
        self._state.see(event, time.monotonic())
        for line in lines_of(event, self._state):
            # No wrapping: a line stays a line for whatever reads the log.
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def stopping(self) -> None:
        """Says that the study ends early. Called from a signal handler: no locks, so no console."""
        try:
            os.write(self._console.file.fileno(), f"{STOPPING}\n".encode())
        except (OSError, ValueError):
            pass  # the log is gone, the study still ends well


def lines_of(event: Event, state: State) -> list[str]:
    """The lines that an event is worth, given the state after it."""
    match event:
        case StudyStarted():
            return [*started_lines(event), *_earlier_lines(event, state)]
        case SpaceResolved():
            return space_lines(event)
        case Probed():
            return [bottleneck_text(event.bottleneck)]
        case TrialStarted(trial=trial):
            return [] if trial.phase in BEHIND else [started_text(trial)]
        case TrialFinished(trial=trial):
            if trial.phase in BEHIND:
                return []
            row = state.rows[-1]
            gain = f", {row.gain}" if row.gain and trial.phase is Phase.SEARCH else ""
            # A baseline that fails ends the study with its detail as the error.
            told_later = row.good or trial.outcome is None or trial.phase is Phase.BASELINE
            detail = "" if told_later or trial.outcome is None else trial.outcome.detail
            return [f"  {row.result}{gain}{', best so far' if row.best else ''}", *([f"  {detail}"] * bool(detail))]
        case Screening():
            return [f"screen: {screening_text(event)}"]
        case FinalsStarted():
            candidates, rounds = count_text(len(event.candidates), "candidate"), count_text(event.rounds, "round")
            return [f"finals: {candidates} against the script as written, {rounds}, each run in a fresh process"]
        case PairFinished():
            return [f"  {pair_text(event)}"]
        case StudyFinished():
            return [""]  # the summary below says what was found
        case Noted():
            return [f"note: {event.text}"]


def started_lines(event: StudyStarted) -> list[str]:
    """The head of a study."""
    trials = f"up to {count_text(event.trials, 'trial')} before the finals" if event.trials else ""
    seconds = budget_text(event.budget_s, event.finals_share) if event.budget_s else ""
    bounds = "; ".join(bound for bound in (trials, seconds) if bound) or "no limit"
    lines = [f"tuning {script_text(event.script)} on {device_text(event.device)}, in {event.folder}", bounds]
    if event.resumed:
        searched = sum(earlier.trial.phase in (Phase.BASELINE, Phase.SEARCH) for earlier in event.earlier)
        lines.append(f"resuming after {count_text(searched, 'trial')}" if searched else "nothing was measured before")
    return lines


def _earlier_lines(event: StudyStarted, state: State) -> list[str]:
    """What a resumed study has found already."""
    baseline = next((each.trial for each in event.earlier if each.trial.phase is Phase.BASELINE), None)
    lines = [f"as written: {result_text(baseline)}"] if baseline is not None else []
    return [*lines, state.best_text] if state.best_text else lines


def space_lines(event: SpaceResolved) -> list[str]:
    """What is searched: each knob with its values, the script's own one marked."""
    if not event.values:
        return ["nothing to search"]
    knobs = []
    for knob, values in event.values.items():
        own = event.as_written.get(knob)
        texts = [f"[{_text(v)}]" if type(v) is type(own) and v == own else _text(v) for v in values]
        alone = " (beside these, for a larger effective batch)" if knob in event.larger else ""
        knobs.append(f"  {knob}: {' '.join(texts)}{alone}")
    searched = f"{event.size:,} configs" if event.size > 1 else "larger effective batches"
    return [f"searching {searched} (in brackets: as written):", *knobs]


def _text(value: object) -> str:
    return value_text(value) if isinstance(value, (bool, int, float, str)) else str(value)
