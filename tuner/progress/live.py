"""A study on a terminal: what was tried, what is being tried and why, the best so far, the time left."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tuner.events import Event
from tuner.model import Phase
from tuner.progress.plain import STOPPING, started_lines
from tuner.progress.state import State, pair_text, trial_name
from tuner.wording import seconds_text

ROWS = 12
# Drawing takes time of a core beside the trial that is being measured: once a second is enough.
REFRESHES_PER_SECOND = 1


class LiveView:
    """A listener that redraws a few lines in place."""

    def __init__(self, console: Console) -> None:
        self._state = State()
        # Events come from the study, drawing from rich's thread.
        self._lock = threading.Lock()
        self._live = Live(
            console=console, get_renderable=self._draw, refresh_per_second=REFRESHES_PER_SECOND, redirect_stdout=False
        )

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Takes one event; the next redraw shows it."""
        with self._lock:
            self._state.see(event, time.monotonic())

    def stopping(self) -> None:
        """Shows that the study ends early. Called from a signal handler: no locks."""
        self._state.stopping = True

    def _draw(self) -> RenderableType:
        with self._lock:
            return draw(self._state, time.monotonic())


def draw(state: State, now: float) -> RenderableType:
    """The view of a state."""
    if state.started is None:
        return Text("starting ...")
    parts: list[RenderableType] = [Text(line, style="bold") for line in started_lines(state.started)]
    parts.append(_bar(state, now))
    if state.rows:
        parts.append(_trials(state))
    parts.extend(Text(f"  {pair_text(pair)}") for pair in state.pairs.values())
    parts.extend(Text(line) for line in _status_lines(state, now))
    parts.extend(Text(f"note: {note}", style="dim") for note in state.notes[-3:])
    if state.stopping and state.finished is None:
        parts.append(Text(STOPPING, style="yellow"))
    return Group(*parts)


def _bar(state: State, now: float) -> RenderableType:
    line = Table.grid(padding=(0, 2))
    done = f"{state.search_done}" + (f" of {state.started.trials}" if state.started and state.started.trials else "")
    share = state.share_done(now)
    left = "" if state.finished else state.time_left(now)
    line.add_row(ProgressBar(total=1.0, completed=share, width=40), f"{share:.0%}", f"{done} trials", left)
    return line


def _trials(state: State) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("trial", justify="right")
    table.add_column("config", overflow="fold", ratio=1)
    table.add_column("result")
    table.add_column("gain", justify="right")
    if len(state.rows) > ROWS:
        table.add_row("...", Text(f"{len(state.rows) - ROWS} earlier ones: see autotune trials", style="dim"), "", "")
    for row in state.rows[-ROWS:]:
        style = "bold green" if row.best else "" if row.good else "dim"
        table.add_row(*(Text(t) for t in (str(row.number), row.config, row.result, row.gain)), style=style)
    return table


def _status_lines(state: State, now: float) -> list[str]:
    lines = []
    if state.best is not None and state.best_gain is not None and state.best.config:
        lines.append(f"best so far, not proven yet: {trial_name(state.best.config)}, {state.best_gain:.2f}x")
    if state.running is not None:
        why = f" ({state.running.why})" if state.running.why else ""
        since = seconds_text(now - state.running_since)
        part = "finals" if state.running.phase is Phase.FINALS else f"trial {state.running.number}"
        lines.append(f"{part}: {trial_name(state.running.config)}{why}, {since}")
    elif state.finished is not None:
        lines.append(f"done in {seconds_text(state.finished.seconds)}: {state.finished.why}")
    return lines
