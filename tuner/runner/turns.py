"""Gives turns to trials that are compared: each trains while the others are held."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path

from tuner.analysis.race import Race
from tuner.analysis.turns import Turn
from tuner.child.records import Block, Facts, Phase
from tuner.child.turns import END
from tuner.child.wire import Entry, encode
from tuner.runner.created_files import made_so_far
from tuner.runner.request import TrialRequest
from tuner.runner.watch import TrialWatch
from tuner.storage.folder import REFERENCE

MOST_MADE = 2
"""So many new files among the user's are logs or pictures; more may be data that the next one finds made."""
_PATIENCE = 3
"""The script as written is started again so often for one trial: it ends by itself, or is killed."""


@dataclass
class Standing:
    """The script as written, alive through many trials. ``asked`` is what was wanted of it, ``request`` what it runs,
    in a folder of its own; ``resources`` end it.
    """

    asked: TrialRequest
    request: TrialRequest
    watch: TrialWatch
    resources: ExitStack


class NewFiles:
    """What trials make among the user's files from their first turn on: those that they take turns with see it."""

    def __init__(self) -> None:
        self._before: dict[Path, set[str]] = {}

    def begin(self, folder: Path) -> None:
        """The trial of that folder is about to have its first turn."""
        self._before.setdefault(folder, {*made_so_far(folder)})

    def obstacle(self) -> str:
        """Why figures of trials that took turns are no evidence, or ""."""
        made = [{*made_so_far(folder)} - before for folder, before in self._before.items()]
        if all(len(new) <= MOST_MADE for new in made):
            return ""
        return "it makes files among yours while it trains, which one that is alive beside it would find made"


def take_turns(watches: Sequence[TrialWatch], numbers: Iterator[int], stop: threading.Event) -> None:
    """Gives turns to those that wait, until every window is as long as asked for.

    The next one goes to whoever has been measured for least time: steps, and so turns, may be longer in one than in
    another, and what the machine does for seconds at a time is to meet all alike.
    """
    while waiting := [watch for watch in watches if watch.waits]:
        is_over = all(watch.has_enough for watch in waiting)
        for watch in waiting if is_over else [min(waiting, key=measured_s)]:
            watch.go_on(END if is_over else next(numbers))
            watch.run(stop)


class Exchange:
    """A trial and the script as written, turn by turn, until ``race`` is settled or the trial's window long enough.

    ``standing`` gives the script as written, held and waiting for its turn; None where there is none to be had.
    ``obstacle``: what of the script makes what was measured no evidence; "" where it is.
    """

    def __init__(
        self, trial: TrialWatch, request: TrialRequest, standing: Callable[[], Standing | None], race: Race
    ) -> None:
        self._trial = trial
        self._request = request
        self._standing = standing
        self._race = race
        self._entries: list[Entry] = []
        self.obstacle = ""

    def run(self, numbers: Iterator[int], stop: threading.Event) -> list[Entry]:
        """Gives the turns, and ends the trial. What the script as written recorded meanwhile, which is kept, too.

        Raises ``Interrupted``, and ``OSError`` on a full disk.
        """
        new_files = NewFiles()
        for _ in range(_PATIENCE):
            standing = self._standing() if self._trial.waits else None
            if standing is None:
                break
            for folder in (self._request.folder, standing.request.folder):
                new_files.begin(folder)
            if self._exchange(standing, numbers, stop):
                break
        self.obstacle = new_files.obstacle()
        if self._trial.waits and not self._is_settled():
            self.obstacle = "it ends, as it is written, too soon to take turns with anything"
        if self._trial.waits:
            self._trial.go_on(END)
            self._trial.run(stop)
        self._keep()
        return self._entries

    def _exchange(self, standing: Standing, numbers: Iterator[int], stop: threading.Event) -> bool:
        """Turns with one process of the script as written. Whether the trial is over; else that process is."""
        other, trial, seen = standing.watch, self._trial, len(standing.watch.entries)
        while trial.waits and other.waits:
            if self._is_settled():
                return True
            ahead = measured_s(trial) > sum(block.seconds for block in self._theirs())
            chosen = other if ahead else trial
            chosen.go_on(next(numbers))
            chosen.run(stop)
            self._entries += [e for e in other.entries[seen:] if isinstance(e.record, Block) and e.record.turn]
            seen = len(other.entries)
        return not trial.waits

    def _theirs(self) -> list[Block]:
        """The blocks of the script as written since the trial's window began, which may have begun anew."""
        if not self._trial.blocks:
            return []
        since = self._trial.blocks[0].turn - 1
        blocks = [entry.record for entry in self._entries if isinstance(entry.record, Block)]
        return [b for b in blocks if b.turn >= since and b.phase is Phase.WINDOW and not b.flagged]

    def _is_settled(self) -> bool:
        """Whether there is enough to say, and the script as written has had its last turn as well."""
        own, other = turns_of(self._trial.blocks), turns_of(self._theirs())
        if not own or not other or other[-1].number < own[-1].number:
            return False
        return self._trial.has_enough or self._race.is_settled(own, other, whole=self._trial.is_whole)

    def _keep(self) -> None:
        """Writes the records of the script as written where the trial's own lie: its figures follow from both."""
        if not self._entries:
            return
        knowledge = self._request.knowledge
        known = Facts(**{field.name: getattr(knowledge, field.name) for field in fields(Facts)})
        self._entries = [Entry(self._entries[0].t, known), *self._entries]
        with (self._request.folder / REFERENCE).open("wb") as file:
            file.writelines(encode(entry.record, entry.t) for entry in self._entries)


def measured_s(watch: TrialWatch) -> float:
    """Seconds that a trial was measured for in its turns."""
    return sum(block.seconds for block in watch.blocks)


def turns_of(blocks: Collection[Block]) -> list[Turn]:
    """A turn each, in samples where those were seen, else in steps."""
    samples = any(block.samples for block in blocks)
    return [
        Turn(number, sum(block.samples if samples else block.steps for block in of), sum(b.seconds for b in of))
        for number, group in itertools.groupby(blocks, key=lambda block: block.turn) if (of := list(group))
    ]  # fmt: skip
