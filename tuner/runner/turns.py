"""Gives turns to trials that are compared: each trains while the others are held."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path

from tuner.analysis.measurement import NOTHING_BESIDE, Beside, TimedBlock
from tuner.analysis.race import Race, asked_again_after
from tuner.analysis.resources import ResourceSample, lost_share
from tuner.analysis.turns import DISTURBED, FEWEST_CALM, Turn, pairs_of_turns
from tuner.child.records import Block, Facts, Failure, Phase
from tuner.child.turns import END
from tuner.child.unison import APART, RANKS_APART
from tuner.child.wire import Entry, encode
from tuner.runner.created_files import made_so_far
from tuner.runner.request import TrialRequest
from tuner.runner.watch import TrialWatch
from tuner.storage.folder import REFERENCE, REFERENCE_RESOURCES
from tuner.storage.records import sample_line

MOST_MADE = 2
"""So many new files among the user's are logs or pictures; more may be data that the next one finds made."""
FEWEST_TURNS = 4
"""Of a window that ends since the study's time is up."""
LONGEST = 2
"""Times its window that a trial goes on which may be the best one, or which others leave too few calm turns."""
LONGEST_VAGUE = 4
"""Where it says little of the trial even then."""
WORTH_ITS_START = 0.5
"""And until it was measured for so many times what it took to its first turn: another trial would say less meanwhile.

A loop may go by fits and starts that are longer than its turns, such as one that fills a buffer in each epoch.
"""
LONGEST_AFTER_LONG_STARTS = 6
"""Times its window, however long that was: an interval is 1.7 times as sharp then as after ``LONGEST`` windows. To
halve it once more would take four times as long, which others are worth.
"""
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
        return "the script makes files among yours while it trains, which a second process of it would find made"


def take_turns(watches: Sequence[TrialWatch], numbers: Iterator[int], stop: threading.Event) -> None:
    """Gives turns to those that wait, until every window is as long as asked for.

    The next one goes to whoever has been measured for least time: steps, and so turns, may be longer in one than in
    another, and what the machine does for seconds at a time is to meet all alike.
    """
    while waiting := [watch for watch in watches if watch.waits]:
        is_over = all(watch.has_enough for watch in waiting) or _is_late(waiting)
        for watch in waiting if is_over else [min(waiting, key=measured_s)]:
            watch.go_on(END if is_over else next(numbers))
            watch.run(stop)


class Exchange:
    """A trial and the script as written, turn by turn, until ``race`` is settled or the trial's window long enough.

    It is made when the ``trial`` waits for its first turn, or has ended before.
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
        self._samples: list[ResourceSample] = []
        self._looked_at = 0
        self._race_is_over = False
        self._longest_s = longest_s(request.window.max_s, trial.seconds)
        self._asked_after = 0.0
        self._is_prolonged = False
        self._is_over = False
        self.obstacle = ""

    def run(self, numbers: Iterator[int], stop: threading.Event) -> Beside:
        """Gives the turns, and ends the trial. What the script as written left meanwhile, which is kept.

        Raises ``Interrupted``, and ``OSError`` on a full disk.
        """
        new_files, apart = NewFiles(), ""
        for _ in range(_PATIENCE):
            standing = self._standing() if self._trial.waits else None
            if standing is None or time.monotonic() > self._trial.ends_by:
                break
            standing.watch.ends_by = self._trial.ends_by
            for folder in (self._request.folder, standing.request.folder):
                new_files.begin(folder)
            if self._exchange(standing, numbers, stop):
                break
            if _came_apart(standing.watch):
                apart = APART
                break
        self.obstacle = apart or new_files.obstacle()
        if self._trial.waits and not self._is_settled():
            if time.monotonic() > self._trial.ends_by:
                self._trial.end_late()
            elif not apart:
                self.obstacle = "it ends, as it is written, too soon to take turns with anything"
        if self._trial.waits:
            self._trial.go_on(END)
            self._trial.run(stop)
        return keep_reference(self._request, self._entries, self._samples)

    def _exchange(self, standing: Standing, numbers: Iterator[int], stop: threading.Event) -> bool:
        """Turns with one process of the script as written. Whether the trial is over; else that process is."""
        other, trial = standing.watch, self._trial
        entries, samples = len(other.entries), len(other.samples)
        while trial.waits and other.waits:
            if self._is_settled():
                return True
            ahead = measured_s(trial) > sum(block.seconds for _, block in self._theirs())
            chosen = other if ahead else trial
            chosen.go_on(next(numbers))
            chosen.run(stop)
            self._entries += other.entries[entries:]
            self._samples += other.samples[samples:]
            entries, samples = len(other.entries), len(other.samples)
        return not trial.waits

    def _theirs(self) -> list[TimedBlock]:
        """The blocks of the script as written since the trial's window began, which may have begun anew."""
        if not self._trial.blocks:
            return []
        since = self._trial.blocks[0][1].turn - 1
        blocks = [(e.t, e.record) for e in self._entries if isinstance(e.record, Block) and not e.rank]
        return [(t, b) for t, b in blocks if b.turn >= since and b.phase is Phase.WINDOW and not b.flagged]

    def _is_settled(self) -> bool:
        """Whether there is enough to say, and the script as written has had its last turn as well."""
        self._is_over = self._is_over or self._says_enough()
        return self._is_over

    def _says_enough(self) -> bool:
        """The same, asked once after each turn: no look is taken twice."""
        own = turns_of(self._trial.blocks, self._trial.samples)
        other = turns_of(self._theirs(), self._samples)
        if not own or not other or other[-1].number < own[-1].number:
            return False
        if _is_late([self._trial]):
            return True
        pairs, alike = pairs_of_turns(own, other), _counts(self._trial.blocks) == _counts(self._theirs())
        # Pairs that are joined may become fewer again.
        if len(pairs) > self._looked_at and not self._race_is_over:
            self._looked_at = len(pairs)
            self._race_is_over = self._race.is_settled(pairs, whole=self._trial.is_whole and alike)
        if self._race_is_over:
            return True
        return self._trial.has_enough and self._is_long_enough(pairs)

    def _is_long_enough(self, pairs: Sequence[tuple[Turn, Turn]]) -> bool:
        """Of a trial whose window is over: whether it isn't worth a longer one. Where the longest is over, it is asked
        once whether that says little.
        """
        measured, window_s = measured_s(self._trial), self._request.window.max_s
        if measured >= self._longest_s and not self._is_prolonged and self._race.says_little(pairs):
            self._is_prolonged = True
            self._longest_s = max(self._longest_s, LONGEST_VAGUE * window_s)
        if measured >= self._longest_s:
            return True
        windows = measured / window_s
        if windows < self._asked_after:
            return False
        self._asked_after = asked_again_after(windows)
        calm = sum(max(turn.lost for turn in pair) <= DISTURBED for pair in pairs)
        return calm >= FEWEST_CALM and not self._race.is_open(pairs)


def longest_s(window_s: float, start_s: float) -> float:
    """Seconds that a trial with such a window, which took so long to its first turn, is measured for at most."""
    return max(LONGEST * window_s, min(LONGEST_AFTER_LONG_STARTS * window_s, WORTH_ITS_START * start_s))


def keep_reference(request: TrialRequest, entries: Sequence[Entry], samples: Sequence[ResourceSample]) -> Beside:
    """Writes what the script as written left in its turns where the trial's own records lie: its figures follow from
    both. Of several ranks those of each are kept. Raises ``OSError``.
    """
    if not entries:
        return NOTHING_BESIDE
    known = Facts(**{field.name: getattr(request.knowledge, field.name) for field in fields(Facts)})
    blocks = [entry for entry in entries if isinstance(entry.record, Block) and entry.record.turn]
    kept = [Entry(entries[0].t, known), *blocks]
    beside = Beside(kept, list(samples))
    with (request.folder / REFERENCE).open("wb") as file:
        file.writelines(encode(entry.record, entry.t, entry.rank) for entry in kept)
    with (request.folder / REFERENCE_RESOURCES).open("w", encoding="ascii") as file:
        file.writelines(map(sample_line, beside.samples))
    return beside


def _is_late(watches: Sequence[TrialWatch]) -> bool:
    """Whether the study's time is up, and all of them have been measured."""
    late = time.monotonic() > min(watch.ends_by for watch in watches)
    return late and all(len({block.turn for _, block in watch.blocks}) >= FEWEST_TURNS for watch in watches)


def _came_apart(watch: TrialWatch) -> bool:
    """Whether a trial of several ranks ended since these wait for each other where turns end."""
    return any(isinstance(each.record, Failure) and each.record.reason == RANKS_APART for each in watch.entries)


def measured_s(watch: TrialWatch) -> float:
    """Seconds that a trial was measured for in its turns."""
    return sum(block.seconds for _, block in watch.blocks)


def _counts(blocks: Collection[TimedBlock]) -> bool:
    """Whether samples were seen. A script may tell of them later than of its steps."""
    return any(block.samples for _, block in blocks)


def turns_of(blocks: Collection[TimedBlock], samples: Sequence[ResourceSample]) -> list[Turn]:
    """A turn each, in samples where those were seen, else in steps."""
    counted = _counts(blocks)
    turns = []
    for number, group in itertools.groupby(blocks, key=lambda timed: timed[1].turn):
        of = list(group)
        amount = sum(block.samples if counted else block.steps for _, block in of)
        lost = lost_share(samples, of[0][0] - of[0][1].seconds, of[-1][0])
        turns.append(Turn(number, amount, sum(block.seconds for _, block in of), lost))
    return turns
