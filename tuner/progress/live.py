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

from tuner.events import Event, SpaceResolved, TrialStarted
from tuner.formatting import bottleneck_text, count_text, seconds_text
from tuner.model import Phase
from tuner.progress.plain import STOPPING, started_lines
from tuner.progress.state import State, pair_text, started_text, trial_name

ROWS = 12
FEWEST_ROWS = 2
LONGEST_BAR = 40
TABLE_HEAD = 3
"""The columns' names, the line on earlier trials, and the one that the cursor stands on."""
# Drawing takes time of a core beside the trial that is being measured: once a second is enough.
REFRESHES_PER_SECOND = 1


class LiveView:
    """A listener that redraws a few lines in place."""

    def __init__(self, console: Console) -> None:
        self._state = State()
        # Events come from the study, drawing from rich's thread.
        self._lock = threading.Lock()
        self._console = console
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
            return draw(self._state, time.monotonic(), self._console)


def draw(state: State, now: float, console: Console) -> RenderableType:
    """The view of a state as it fits the console: earlier trials give way, so that the rest is always seen."""
    if state.started is None:
        return Text("starting ...")
    head: list[RenderableType] = [Text(line, style="bold") for line in started_lines(state.started)]
    head.append(_bar(state, now))
    if state.space is not None:
        head.append(Text(_space_line(state.space), style="dim"))
    if state.probed is not None:
        head.append(Text(bottleneck_text(state.probed.bottleneck), style="dim"))
    foot: list[RenderableType] = [Text(f"  {pair_text(pair)}") for pair in state.pairs.values()]
    foot.extend(Text(line) for line in _status_lines(state, now))
    foot.extend(Text(f"note: {note}", style="dim") for note in state.notes[-3:])
    if state.finished is not None:
        foot.append(Text())  # the summary follows
    elif state.stopping:
        foot.append(Text(STOPPING, style="yellow"))
    if not state.rows:
        return Group(*head, *foot)
    taken = len(console.render_lines(Group(*head, *foot), pad=False))
    room = console.size.height - taken - TABLE_HEAD
    return Group(*head, _trials(state, max(FEWEST_ROWS, min(ROWS, room))), *foot)


def _space_line(space: SpaceResolved) -> str:
    kept = [knob for knob in space.values if knob not in space.larger]
    parts = [f"{space.size:,} configs of {', '.join(kept)}"] if kept else []
    parts += ["larger effective batches"] if space.larger else []
    return f"searching {', and '.join(parts)}" if parts else "nothing to search"


def _bar(state: State, now: float) -> RenderableType:
    line = Table.grid(padding=(0, 2))
    line.add_column(max_width=LONGEST_BAR)
    for _ in range(3):
        line.add_column(no_wrap=True)
    bound = state.started.trials if state.started is not None else None
    done = f"{state.search_done} of {bound} trials" if bound else count_text(state.search_done, "trial")
    share = state.share_done(now)
    left = "" if state.finished else state.time_left(now)
    line.add_row(ProgressBar(total=1.0, completed=share), f"{share:.0%}", done, left)
    return line


def _trials(state: State, most: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("trial", justify="right", no_wrap=True)
    # The only column that rich may narrow: its cells are cut, not folded.
    table.add_column("config")
    table.add_column("result", no_wrap=True)
    table.add_column("gain", justify="right", no_wrap=True)
    earlier = len(state.rows) - most
    if earlier > 0:
        table.add_row("...", Text(f"{earlier} earlier", style="dim"), "", "")
    for row in state.rows[-most:]:
        style = "bold green" if row.best else "" if row.good else "dim"
        config = Text(row.config, no_wrap=True, overflow="ellipsis")
        table.add_row(Text(str(row.number)), config, Text(row.result), Text(row.gain), style=style)
    return table


def _status_lines(state: State, now: float) -> list[str]:
    lines = []
    searching = state.finals is None and state.finished is None
    if searching and state.best_text:
        lines.append(state.best_text)
    if state.running is not None:
        since = seconds_text(now - state.running_since)
        lines.append(f"{_running(state.running)}, for {since}")
    return lines


def _running(started: TrialStarted) -> str:
    trial = started.trial
    if trial.phase is Phase.FINALS:
        return f"finals, round {trial.round}: {trial_name(trial.config)}"
    if trial.phase is Phase.SCREEN:
        return f"screen, seed {trial.seed}: {trial_name(trial.config)}"
    return started_text(trial)
