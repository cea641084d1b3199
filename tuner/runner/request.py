"""What a runner is given and what it promises: it turns a config into an outcome, by the request alone."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from tuner.analysis.race import Race
from tuner.child.records import ProbeSide, Window
from tuner.child.watch import Watch
from tuner.knowledge import Knowledge
from tuner.model import Config, Device, Outcome, Script


def screen_window(samples: int) -> Window:
    """Every step is a block of its own, until so many samples have been trained on: a look at losses, not at rates."""
    return Window(
        warmup_steps=0, warmup_s=0.0, block_s=0.0, min_blocks=3, min_s=0.0, max_s=math.inf, target_half_width=0.0,
        until_samples=samples,
    )  # fmt: skip


def probe_window(window: Window) -> Window:
    """A quarter of the window: a few percent decide nothing here."""
    return replace(window, max_s=window.max_s / 4, target_half_width=0.05)


@dataclass(frozen=True)
class Limits:
    """Bounds on one trial. Bytes and seconds; ``None`` means unbounded.

    ``no_progress_s``: how long a training loop may go without a step. See ``silence`` for what is no training.
    """

    trial_timeout_s: float = 120.0
    no_progress_s: float = 60.0
    max_host_bytes: int | None = None
    max_device_bytes: int | None = None


@dataclass(frozen=True)
class TrialRequest:
    """One trial to run.

    ``folder`` is the trial's own and holds its log, records and diverted files; it is made where it doesn't exist.
    ``knowledge`` is what the study knows of the script by now. ``seed`` shifts every seed that the script sets.
    ``probe`` runs one side of the loop by itself: computing on one kept batch, or the loader without training; None
    runs the whole loop. ``compile_cache`` is the folder that compilers keep their output in, unless the user's
    environment names another. ``without``: the watches to leave out. ``plain``: the script is run by plain Python, with
    nothing of ours but what keeps it from writing over the user's files: it gives no measurement. ``made``: the paths
    of what the script made in trials, with ``plain``: what comes to lie there, or beside it with a name alike, is put
    aside however it is written. ``ends_by``: the
    moment of the monotonic clock by which the study has no more time for it. ``standing``: it takes turns with trial
    after trial, and its time limit is that of each turn. ``fresh``: it shares no layout of memory with other trials;
    otherwise it may be forked, where that is safe, from the same process as these, which has the script's first imports
    behind it: good enough to rank, not to prove.
    ``rotation``: configs that take turns with its own in its window and process; see ``tuner.child.rotation``.
    ``ranks``: so many processes train it together, as torchrun would start them on this host.
    """

    folder: Path
    script: Script
    device: Device
    config: Config
    knowledge: Knowledge = field(default_factory=Knowledge)
    window: Window = field(default_factory=Window)
    limits: Limits = Limits()
    seed: int | None = None
    probe: ProbeSide | None = None
    compile_cache: Path | None = None
    without: frozenset[Watch] = frozenset()
    plain: bool = False
    made: tuple[str, ...] = ()
    ends_by: float = math.inf
    standing: bool = False
    fresh: bool = True
    rotation: tuple[Config, ...] = ()
    ranks: int = 1


@dataclass(frozen=True)
class ByTurns:
    """What came of trials that took turns, in their order.

    ``obstacle``: what of the script makes their figures no evidence, or what they ended as; "" where there is nothing.
    It continues a sentence of which the script is the subject.
    """

    outcomes: tuple[Outcome, ...]
    obstacle: str = ""


class Runner(Protocol):
    """Runs trials to their outcomes; when ``stop`` is set, ends them at once and raises ``Interrupted``.

    It may keep a trial alive that others take turns with, until it is closed. One that derives from this class needs
    to run trials by themselves only: then no turns are taken (``takes_turns``), nor by configs in one (``rotates``).
    """

    takes_turns: bool = False
    rotates: bool = False

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """Runs one trial by itself."""
        ...

    def run_by_turns(self, requests: Sequence[TrialRequest], stop: threading.Event) -> ByTurns:
        """Runs trials of one device that are alive at once, and measured by turns."""
        return ByTurns(tuple(self.run(request, stop) for request in requests))

    def run_beside(self, request: TrialRequest, written: TrialRequest, stop: threading.Event, race: Race) -> ByTurns:
        """Runs one trial by turns with the script as written, which stays alive for the next one, until ``race`` is
        settled. ``written`` asks for that: its folder holds one for each time that it was started.
        """
        return ByTurns((self.run(request, stop),))

    @property
    def kept_bytes(self) -> int:
        """The memory that is taken by what is kept alive."""
        return 0

    def close(self) -> None:
        """Ends what is kept alive."""
        return


class Interrupted(Exception):
    """The trial was ended from outside before it had an outcome; nothing is to be stored of it."""
