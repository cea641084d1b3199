"""A rotation in several ranks: rank 0 decides whose turn is next, and all switch between the same two steps.

At the end of a turn all ranks wait after the same step (``unison``). There rank 0's rotation asks every rank's switcher
for one thing after the other, and each answers: a config that one of them can't have has no turns in any. The next turn
begins in all of them at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

from .participants import Switcher
from .recorder import Recorder
from .rotation import AS_WRITTEN, NO_SWITCH, Rotating, Rotation
from .unison import Unison
from .words import Value

Config = Mapping[str, Value]


class Act(IntEnum):
    """What a rank is asked for: see the methods of ``Switcher``. ``DIVERGED``: whether a loss of its wasn't finite."""

    OBSTACLE = 1
    REFUSAL = 2
    BEGIN = 3
    TO = 4
    DOUBT = 5
    DISTURBED = 6
    PUT_BACK = 7
    LEAVE = 8
    END = 9
    DIVERGED = 10


def _done(switcher: Switcher, act: Act, config: Config) -> str:
    """Does it in this rank: what there is to say of it, or ""."""
    asked: Mapping[Act, Callable[[], str | None]] = {
        Act.OBSTACLE: switcher.obstacle,
        Act.REFUSAL: lambda: switcher.refusal(config),
        Act.BEGIN: switcher.begin,
        Act.TO: lambda: switcher.to(config),
        Act.DOUBT: lambda: switcher.doubt(config),
        Act.DISTURBED: lambda: switcher.disturbed(config),
        Act.PUT_BACK: switcher.put_back_weights,
        Act.LEAVE: lambda: switcher.leave(config),
        Act.END: switcher.end,
    }
    return asked[act]() or ""


class _OfAllRanks(Switcher):
    """The switchers of all ranks as one, for rank 0; the others wait for what they are asked.

    Asked whether anything is wrong it says what the first rank says, its own first. What fails in another rank fails
    here, too, once all are through with it.
    """

    def __init__(self, own: Switcher, unison: Unison, configs: Sequence[Config]) -> None:
        self._own = own
        self._unison = unison
        self._configs = [AS_WRITTEN, *configs]

    def obstacle(self) -> str:
        """As ``Switcher.obstacle``."""
        return self._asked(Act.OBSTACLE)

    def refusal(self, config: Config) -> str:
        """As ``Switcher.refusal``."""
        return self._asked(Act.REFUSAL, config)

    def begin(self) -> None:
        """As ``Switcher.begin``."""
        self._did(Act.BEGIN)

    def to(self, config: Config) -> None:
        """As ``Switcher.to``."""
        self._did(Act.TO, config)

    def doubt(self, config: Config) -> str:
        """As ``Switcher.doubt``."""
        return self._asked(Act.DOUBT, config)

    def disturbed(self, config: Config) -> str:
        """As ``Switcher.disturbed``."""
        return self._asked(Act.DISTURBED, config)

    def put_back_weights(self) -> None:
        """As ``Switcher.put_back_weights``."""
        self._did(Act.PUT_BACK)

    def loads(self, config: Config) -> bool:
        """As ``Switcher.loads``."""
        return self._own.loads(config)

    def leave(self, config: Config) -> None:
        """As ``Switcher.leave``."""
        self._did(Act.LEAVE, config)

    def end(self) -> None:
        """As ``Switcher.end``."""
        self._did(Act.END)

    def diverged_elsewhere(self) -> bool:
        """Whether a loss of another rank wasn't finite since it was last asked."""
        self._ask(Act.DIVERGED, AS_WRITTEN)
        return any(self._unison.answers().values())

    def _ask(self, act: Act, config: Config) -> None:
        self._unison.ask(act, next(place for place, each in enumerate(self._configs) if each == config))

    def _asked(self, act: Act, config: Config = AS_WRITTEN) -> str:
        self._ask(act, config)
        try:
            own = _done(self._own, act, config)
        finally:
            elsewhere = self._elsewhere()
        return own or elsewhere

    def _did(self, act: Act, config: Config = AS_WRITTEN) -> None:
        self._ask(act, config)
        try:
            _done(self._own, act, config)
        finally:
            elsewhere = self._elsewhere()
        if elsewhere:
            raise RuntimeError(elsewhere)

    def _elsewhere(self) -> str:
        """What the first of the others says that says anything."""
        answers = self._unison.answers()
        return next((f"rank {rank}: {text}" for rank, text in answers.items() if text), "")


class LedRotation(Rotation):
    """That of rank 0. ``not_finite``: ends the trial, where a loss isn't finite by nobody's doing but the script's."""

    def __init__(
        self,
        recorder: Recorder,
        configs: Sequence[Config],
        switcher: Switcher | None,
        refuse: Callable[[str], None],
        *,
        unison: Unison,
        not_finite: Callable[[], None],
    ) -> None:
        self._all = _OfAllRanks(switcher, unison, configs) if switcher is not None else None
        super().__init__(recorder, configs, self._all, refuse)
        self._unison = unison
        self._not_finite = not_finite
        self._diverges = False

    def wait(self, *, enough: bool, whole: bool) -> float:
        """As ``Rotation.wait``, once all ranks have come to the turn's end."""
        if self.ended:
            return 0.0
        began = time.perf_counter()
        self._unison.gather()
        if not self._unison.apart:
            self._settle()
            super().wait(enough=enough, whole=whole)
        return time.perf_counter() - began

    def diverged(self) -> bool:
        """As ``Rotation.diverged``: whose doing it is shows at the turn's end, where all ranks tell."""
        if self._turns is None or self.ended:
            return False
        self._diverges = True
        return True

    def _settle(self) -> None:
        if self._turns is None or self._all is None:
            return
        diverged = self._all.diverged_elsewhere() or self._diverges
        self._diverges = False
        if diverged and not super().diverged():
            self._not_finite()


class FollowedRotation(Rotating):
    """That of another rank, which does what it is asked. Its turns are those that rank 0 decides on."""

    def __init__(self, configs: Sequence[Config], switcher: Switcher | None) -> None:
        self.current = 0
        self.ended = False
        self._configs = [AS_WRITTEN, *configs]
        self._switcher = switcher
        self._now: Config = AS_WRITTEN
        self._has_begun = self._diverges = False

    @property
    def has_config(self) -> bool:
        """As ``Rotating.has_config``."""
        return bool(self._now) and not self.ended

    def wait(self, *, enough: bool, whole: bool) -> float:
        """Rank 0 ends turns."""
        return 0.0

    def failed(self, failure: str) -> None:
        """As ``Rotating.failed``; nothing is done twice in several ranks, so that there is nothing to tell."""

    def diverged(self) -> bool:
        """As ``Rotating.diverged``; rank 0 decides whose doing it is."""
        if not self._has_begun or self.ended:
            return False
        self._diverges = True
        return True

    def answer(self, act: int, place: int) -> str:
        """Does what rank 0 asks for, with the config at that place: what there is to say of it, or ""."""
        if act == Act.DIVERGED:
            diverged, self._diverges = self._diverges, False
            return "diverged" * diverged
        if self._switcher is None:
            return NO_SWITCH
        self._has_begun |= act == Act.BEGIN
        if act == Act.TO:
            self._now = self._configs[place]
        try:
            return _done(self._switcher, Act(act), self._configs[place])
        except Exception as error:
            return f"{type(error).__name__}: {error}"
