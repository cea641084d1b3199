"""The memory that the ranks of a trial share: what each has done, and after which steps all cut their blocks and end.

Rank 0 decides, by its own clock; nothing of ours takes part in the script's own communication. Each rank writes what it
has done and reads what was decided after each of its steps, under one lock: a step that is decided on lies ahead of
every rank, however far one is behind. Ranks that take turns with another trial's wait after each cut until rank 0 has
decided what holds from there on; it ends a turn once all have come to the cut. Where ranks don't come to the same
steps in company, as where one has fewer batches, none waits for long: they are ``apart``, and take no turns.

Where all have come to a cut rank 0 may ask the others for something, one thing after the other, before it decides.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

RANKS_APART = "ranks-apart"
"""The reason of a trial by turns whose ranks don't come to the same steps in company: it says nothing of its config."""
APART = "its ranks don't come to the same steps at the same time"
"""The same for people."""
CUTS = 4096
"""So many newest cuts are kept: a rank that falls further behind leaves some out, and what lies between is joined."""
_ENDS_AT, _IN_WINDOW, _CUT_COUNT, _GATHERED_AT, _DECIDED_AT, _TURN, _TURNS_ENDED, _LEADS_IN = range(8)
_ASKED, _ACT, _PLACE, _FIRST_CUT = range(8, 12)
_STEPS, _ACTIVITY, _PROGRESS, _CAME_TO, _ANSWERED, _PER_RANK = range(6)
_BYTES, _ANSWER_BYTES = 8, 256
_LOOK_S, _BRISK_S, _IDLE_LOOK_S = 0.0005, 1.0, 0.02
"""Between two looks at what another rank has written; longer after such a wait, so that a stall is seen to be one."""
_MOST_OVERSLEPT = 4
"""Times such a sleep that is taken for one, and not for a process that was stopped."""
PATIENCE_S = 20.0
"""Ranks that exchange gradients come to a cut at nearly the same time: for one that doesn't nobody waits longer, unless
blocks are as long. Shorter than any silence that is taken for a stall."""
_NEVER_AGAIN = 1 << 62
"""The step that a rank which is through counts as having come to, and rank 0 as having decided on."""


class Decision(NamedTuple):
    """What holds from a cut on: the number of the turn, whether no other will come, and whether its lead-in is on."""

    turn: int
    ended: bool
    leads_in: bool


def bytes_for(ranks: int) -> int:
    """The size of what so many ranks share."""
    return _answers_from(ranks) + _ANSWER_BYTES * ranks


def steps_of(memory: bytes, ranks: int) -> list[int]:
    """The steps that each rank had taken when what they share was read."""
    numbers = memoryview(memory).cast("q")
    return [numbers[_place(rank, _STEPS)] for rank in range(ranks)]


def _answers_from(ranks: int) -> int:
    return _BYTES * (_FIRST_CUT + CUTS + _PER_RANK * ranks)


def _place(rank: int, field: int) -> int:
    return _FIRST_CUT + CUTS + _PER_RANK * rank + field


class Unison:
    """One rank's side of what all share. ``descriptor``: a file of ``bytes_for(size)`` bytes, zeros at first."""

    def __init__(self, descriptor: int, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.is_cut = False
        """Whether a block of all ranks ends with the step that was told last, or with one of several told at once."""
        self.ends = False
        """Whether that is the last one."""
        self.cut = 0
        """The step after which the newest cut is that this rank has come to."""
        self.apart = False
        """Whether this rank has waited at a cut for others that didn't come: they may be waiting for it elsewhere."""
        self.patience_s = PATIENCE_S
        """For how long it waits."""
        self._descriptor = descriptor
        shared = memoryview(mmap.mmap(descriptor, bytes_for(size)))
        self._answers = shared[_answers_from(size) :]
        self._numbers, self._amounts = shared.cast("q"), shared.cast("d")
        self._cuts_seen = 0

    @property
    def leads(self) -> bool:
        """Whether this rank decides."""
        return self.rank == 0

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def stepped(self, steps: int, progress: float, activity: int) -> None:
        """This rank has taken so many steps; sets ``is_cut`` and ``ends``."""
        numbers = self._numbers
        with self._alone():
            numbers[_place(self.rank, _STEPS)] = steps
            self._amounts[_place(self.rank, _PROGRESS)] = progress
            numbers[_place(self.rank, _ACTIVITY)] = activity
            self.is_cut = False
            self._cuts_seen = max(self._cuts_seen, numbers[_CUT_COUNT] - CUTS)
            while self._cuts_seen < numbers[_CUT_COUNT]:
                cut = numbers[_FIRST_CUT + self._cuts_seen % CUTS]
                if cut > steps:
                    break
                # Decided on ahead of this rank: it lies in what was taken since the last time.
                self.is_cut, self.cut = True, cut
                self._cuts_seen += 1
            self.ends = 0 < numbers[_ENDS_AT] <= steps

    def cut_after(self, steps: int) -> None:
        """Rank 0: the next block ends so many steps after the one that the foremost rank has taken."""
        numbers = self._numbers
        with self._alone():
            count = numbers[_CUT_COUNT]
            numbers[_FIRST_CUT + count % CUTS] = self._foremost() + max(1, steps)
            numbers[_CUT_COUNT] = count + 1

    def gather(self) -> None:
        """Rank 0: returns once all ranks have come to the cut that it has come to itself, or are ``apart``."""
        numbers, others = self._numbers, [_place(rank, _CAME_TO) for rank in range(1, self.size)]
        self._wait_until(lambda: all(numbers[other] >= self.cut for other in others))
        numbers[_GATHERED_AT] = self.cut

    def _wait_until(self, is_over: Callable[[], bool], *, however_long: bool = False) -> None:
        """Until then, or until the rank's patience is over: not counted is for how long its process was stopped.

        ``however_long``: it has no end, but soon takes next to no time of a core, so that a stall is seen to be one.
        """
        waited_s, look_s = 0.0, _LOOK_S
        while not is_over():
            if waited_s >= self.patience_s and not however_long:
                self.apart = True
                return
            began = time.monotonic()
            time.sleep(look_s)
            waited_s += min(time.monotonic() - began, _MOST_OVERSLEPT * look_s)
            if waited_s >= _BRISK_S:
                look_s = _IDLE_LOOK_S

    def decide(self, decision: Decision) -> None:
        """Rank 0: says what holds from the cut on that it has come to; the others wait for it there."""
        numbers = self._numbers
        with self._alone():
            numbers[_TURN], numbers[_TURNS_ENDED], numbers[_LEADS_IN] = map(int, decision)
            numbers[_DECIDED_AT] = self.cut

    def ask(self, act: int, place: int) -> None:
        """Rank 0, which has gathered all: has each of the others do something, see ``follow``."""
        numbers = self._numbers
        with self._alone():
            numbers[_ACT], numbers[_PLACE] = act, place
            numbers[_ASKED] += 1

    def answers(self) -> dict[int, str]:
        """Rank 0: what each of the others answers to what was asked last, by its number, once all have.

        One that is through answers nothing. One that ends otherwise has all of them ended, by what started them.
        """
        numbers, others = self._numbers, range(1, self.size)

        def waited_for() -> bool:
            asked = numbers[_ASKED]
            return any(
                numbers[_place(rank, _ANSWERED)] < asked and numbers[_place(rank, _CAME_TO)] < _NEVER_AGAIN
                for rank in others
            )

        self._wait_until(lambda: not waited_for(), however_long=True)
        with self._alone():
            answered = [rank for rank in others if numbers[_place(rank, _ANSWERED)] == numbers[_ASKED]]
            texts = {rank: self._answers[rank * _ANSWER_BYTES : (rank + 1) * _ANSWER_BYTES] for rank in answered}
            return {rank: bytes(text).rstrip(b"\0").decode("utf-8", "ignore") for rank, text in texts.items()}

    def _answer(self, do: Callable[[int, int], str]) -> None:
        numbers, asked = self._numbers, self._numbers[_ASKED]
        text = do(numbers[_ACT], numbers[_PLACE]).encode()[:_ANSWER_BYTES]
        with self._alone():
            begin = self.rank * _ANSWER_BYTES
            self._answers[begin : begin + _ANSWER_BYTES] = text.ljust(_ANSWER_BYTES, b"\0")
            numbers[_place(self.rank, _ANSWERED)] = asked

    def follow(self, do: Callable[[int, int], str] = lambda act, place: "") -> Decision:
        """Another rank: it has come to the cut; returns once rank 0 has decided what holds from there on.

        Or what held before, where they are ``apart``. Once rank 0 has gathered all, it is its parent that takes long.
        ``do``: does what rank 0 asks for meanwhile, which is a number and one more, and gives the answer.
        """
        numbers = self._numbers
        numbers[_place(self.rank, _CAME_TO)] = self.cut
        self._wait_until(lambda: max(numbers[_GATHERED_AT], numbers[_DECIDED_AT]) >= self.cut)
        while numbers[_DECIDED_AT] < self.cut and not self.apart:
            if numbers[_ASKED] > numbers[_place(self.rank, _ANSWERED)]:
                self._answer(do)
            else:
                time.sleep(_LOOK_S)
        with self._alone():
            return Decision(numbers[_TURN], bool(numbers[_TURNS_ENDED]), bool(numbers[_LEADS_IN]))

    def leave(self) -> None:
        """This rank takes no steps any more: none waits for it at a cut."""
        numbers = self._numbers
        with self._alone():
            if self.leads:
                numbers[_TURNS_ENDED], numbers[_DECIDED_AT] = 1, _NEVER_AGAIN
            else:
                numbers[_place(self.rank, _CAME_TO)] = _NEVER_AGAIN

    def end(self) -> None:
        """Rank 0: the next step that no rank has taken yet is the last one of all."""
        with self._alone():
            self._numbers[_ENDS_AT] = self._foremost() + 1

    def _foremost(self) -> int:
        return max(self._numbers[_place(rank, _STEPS)] for rank in range(self.size))

    @property
    def in_window(self) -> bool:
        """Whether rank 0 is in its window."""
        return bool(self._numbers[_IN_WINDOW])

    @in_window.setter
    def in_window(self, value: bool) -> None:
        self._numbers[_IN_WINDOW] = int(value)

    @property
    def activity(self) -> int:
        """The sum over all ranks: it changes where any of them did what a window must not hold."""
        return sum(self._numbers[_place(rank, _ACTIVITY)] for rank in range(self.size))

    @property
    def progress(self) -> float:
        """What all of them have trained on."""
        return sum(self._amounts[_place(rank, _PROGRESS)] for rank in range(self.size))
