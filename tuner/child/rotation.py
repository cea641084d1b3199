"""Goes through several configs within one window: each trains for a turn, and the next one at the following step.

After a first turn of each, which isn't measured (kernels are made and chosen, memory is taken), come ``ROUNDS`` in
which the script as written has a turn before and after each group of configs. A config that is far behind leaves.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from .participants import Switcher
from .recorder import Recorder
from .records import Block, DisturbedTurn, LeftRotation, Phase, SwitchedTo, Value
from .rounds import ROUNDS, Noise, behind, counts_of, groups, weights_around
from .turns import LEAD_IN_S, TurnGiver

AS_WRITTEN: Mapping[str, Value] = {}
NO_SWITCH = "nothing can switch its config while it trains"
MOST_DISTURBED = 2
"""A config leaves of whose measured turns so many held something else."""
Member = tuple[int, Mapping[str, Value]]
"""A config, and its place among those of the rotation; the script as written has 0."""
WRITTEN: Member = (0, AS_WRITTEN)


class Rotating(TurnGiver, Protocol):
    """Gives turns to configs, as a session and its watches see it."""

    @property
    def has_config(self) -> bool:
        """Whether a config has its turn."""
        ...

    def failed(self, failure: str) -> None:
        """What the config whose turn it is couldn't do the script as written could, in its turn: it leaves with that.

        ``failure`` continues a sentence of which the config is the subject.
        """
        ...

    def diverged(self) -> bool:
        """The training loss isn't finite: whether that may be a config's doing, so that the trial goes on."""
        ...


class Rotation(Rotating):
    """Gives turns to the script as written and to ``configs``, for ``ROUNDS``; none begins once the window is long
    enough, or no config is left.

    ``refuse`` is told why there is no rotation, where there can't be one. The script is as written once it has ended.
    """

    def __init__(
        self,
        recorder: Recorder,
        configs: Sequence[Mapping[str, Value]],
        switcher: Switcher | None,
        refuse: Callable[[str], None],
    ) -> None:
        self._recorder = recorder
        self._members: list[Member] = list(enumerate(configs, 1))
        self._switcher = switcher
        self._refuse = refuse
        self._pid = os.getpid()
        self._turns: Iterator[tuple[Member, bool]] | None = None
        self._tally = _Tally()
        self._owners: dict[int, int] = {}
        """A measured turn's number → the place of the one whose turn it is."""
        self._firsts: dict[int, int] = {}
        """So of first turns."""
        self._disturbed: dict[int, int] = {}
        """A config's place → how many of its measured turns held something besides training."""
        self._gone: set[int] = set()
        self._now: Member = WRITTEN
        self._before: Member = WRITTEN
        self._warms_up = False
        self._enough = False
        self._is_spoilt = False
        self._failure = ""
        """What went wrong in the turn of the config that has it, and not as the script was written."""
        self._rounds = 0
        """Those that have begun."""
        self._loads = False
        """Whether configs have loaders of their own."""
        self._apart = False
        """Whether the script as written has its turn after each config: one of two has spoilt the weights."""
        self.current = 0
        self.ended = False

    def lead_in_s(self, *, stock: bool, short: bool) -> float:
        """As ``TurnGiver.lead_in_s``."""
        return 0.0 if self.ended else LEAD_IN_S

    def wait(self, *, enough: bool, whole: bool) -> float:
        """Ends the turn, and switches to the config of the next one."""
        if self.ended or os.getpid() != self._pid:
            return 0.0
        began = time.perf_counter()
        self._enough = enough
        if self._turns is None:
            self._begin()
        elif self._now[0] and self._switcher is not None:
            doubt = self._switcher.doubt(self._now[1])
            if self._failure:
                self._leave(self._now, self._failure)
            elif doubt:
                self._leave(self._now, f"did not take effect: {doubt}")
            elif not self._warms_up:
                self._look_for_disturbance()
        elif self._switcher is not None:
            self._look_for_disturbance()
        if not self.ended:
            self._next()
        return time.perf_counter() - began

    @property
    def has_config(self) -> bool:
        """As ``Rotating.has_config``."""
        return self._turns is not None and not self.ended and bool(self._now[0]) and os.getpid() == self._pid

    def failed(self, failure: str) -> None:
        """As ``Rotating.failed``."""
        self._failure = self._failure or failure

    def measured(self, block: Block) -> None:
        """As ``TurnGiver.measured``. A block that warms up makes the window begin anew, and so the rounds."""
        if block.phase is Phase.WARMUP:
            self._rounds = 0
        self._tally.add(block)

    def diverged(self) -> bool:
        """As ``Rotating.diverged``: the config leaves, and the weights are put back."""
        if self._turns is None or self.ended:
            return False
        # What the last step of a config did to the weights shows in the next turn only.
        blamed = self._now if self._now[0] else self._before
        if not blamed[0] or blamed[0] in self._gone:
            return self._is_spoilt
        if self._now[0] and self._before[0] and self._before[0] not in self._gone:
            # Either of two whose turns follow each other. Whose it is shows once no turns do.
            self._apart = self._is_spoilt = True
            return True
        self._leave(blamed, "made the training loss not finite")
        self._apart, self._is_spoilt = False, True
        return True

    def _begin(self) -> None:
        """Starts the rotation, or ends it before its first turn."""
        switcher = self._switcher
        try:
            obstacle = switcher.obstacle() if switcher is not None else NO_SWITCH
            if switcher is not None and not obstacle:
                for member in self._members:
                    refusal = switcher.refusal(member[1])
                    if refusal:
                        self._leave(member, refusal)
                switcher.begin()
                self._loads = any(switcher.loads(config) for _, config in self._staying())
        except Exception as error:
            obstacle = f"its settings can't be kept: {type(error).__name__}: {error}"
        if obstacle:
            self.ended = True
            self._refuse(obstacle)
        self._turns = self._order()

    def _order(self) -> Iterator[tuple[Member, bool]]:
        """Whose turn is next, and whether it is a first one."""
        for member in self._members:
            yield member, True
        yield WRITTEN, False
        while self._rounds < ROUNDS and not self._enough:
            self._rounds += 1
            for group in groups(self._staying(), self._rounds - 1):
                for member in group:
                    yield member, False
                    if self._apart or member == group[-1]:
                        yield WRITTEN, False
            if self._rounds:
                self._leave_behind()

    def _staying(self) -> list[Member]:
        return [member for member in self._members if member[0] not in self._gone]

    def _leave_behind(self) -> None:
        """Has those leave that are far behind by their turns so far."""
        rates, staying = self._tally.rates(loads=self._loads), dict(self._staying())
        written = [number for number in rates if self._owners.get(number) == 0]
        gains: dict[int, list[float]] = {}
        firsts: dict[int, float] = {}
        for number, rate in rates.items() if written else ():
            place = self._owners.get(number, self._firsts.get(number, 0))
            if place not in staying:
                continue  # the script as written has none around its own turns, where it had but one
            weights = weights_around(number, written)
            gain = rate - sum(weight * rates[each] for each, weight in weights.items()) / sum(weights.values())
            if number in self._owners:
                gains.setdefault(place, []).append(gain)
            else:
                firsts[place] = gain
        noise = Noise.of([rates[number] for number in written], gains.values())
        for place in behind(gains, firsts, noise):
            self._leave((place, staying[place]), f"is far behind after {self._rounds} of {ROUNDS} rounds", slow=True)

    def _look_for_disturbance(self) -> None:
        """The turn that has ended doesn't count where it held something else. A config with too many of them leaves."""
        assert self._switcher is not None
        place, reason = self._now[0], self._switcher.disturbed(self._now[1])
        if not reason or place in self._gone:
            return
        self._recorder.emit(DisturbedTurn(self.current, reason))
        self._tally.leave_out(self.current)
        if not place:
            return
        self._disturbed[place] = self._disturbed.get(place, 0) + 1
        if self._disturbed[place] >= MOST_DISTURBED:
            self._leave(self._now, f"has too few turns that count: in {MOST_DISTURBED} of them {reason}")

    def _next(self) -> None:
        assert self._switcher is not None and self._turns is not None
        if self._is_spoilt:
            self._switcher.put_back_weights()
            self._is_spoilt = False
            self._now = WRITTEN  # nothing is left of whose turn it was
        for member, is_first in self._turns:
            if member[0] in self._gone:
                continue
            self._before, self._now, self._warms_up, self._failure = self._now, member, is_first, ""
            self.current += 1
            (self._firsts if is_first else self._owners)[self.current] = member[0]
            # Told before it is done: where that is the process's end, it is known which one it was.
            self._recorder.emit(SwitchedTo(self.current, member[1], is_first, self._loads))
            try:
                self._switcher.to(member[1])
                return
            except Exception as error:
                if not member[0]:
                    raise
                self._leave(member, f"can't be switched to: {type(error).__name__}: {error}")
        self.ended = True
        self._switcher.to(AS_WRITTEN)
        self._switcher.end()

    def _leave(self, member: Member, reason: str, *, slow: bool = False) -> None:
        self._gone.add(member[0])
        if self._switcher is not None:
            self._switcher.leave(member[1])
        self._recorder.emit(LeftRotation(member[1], reason[:300], slow))


class _Tally:
    """What was counted in each turn of the window: all that it takes to say who is far behind."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []

    def add(self, block: Block) -> None:
        """A block of whatever phase and turn. One that warms up makes the window begin anew."""
        if block.phase is Phase.WARMUP:
            self._blocks.clear()
        elif not block.flagged and block.turn:
            self._blocks.append(block)

    def leave_out(self, turn: int) -> None:
        """That turn doesn't count."""
        self._blocks = [block for block in self._blocks if block.turn != turn]

    def rates(self, *, loads: bool) -> dict[int, float]:
        """The logarithm of each turn's rate by its number, in their order, by which a rotation is judged."""
        counts = counts_of(self._blocks, loads=loads).items()
        return {number: math.log(amount / seconds) for number, (amount, seconds) in counts if min(amount, seconds) > 0}
