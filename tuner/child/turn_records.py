"""Records of turns: those that trials take with each other (``turns``), and configs within one (``rotation``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from .words import Value


@dataclass(frozen=True)
class TurnEnd:
    """The child waits between two steps, until it is given its next turn. ``enough``: its window is as long as was
    asked for; ``whole``: it holds what a window has to, however long it is.
    """

    kind: ClassVar[str] = "turn"
    enough: bool
    whole: bool = False


@dataclass(frozen=True)
class SwitchedTo:
    """A turn of a rotation begins, with this config; an empty one is the script as written.

    ``turn`` is the number that its blocks have. ``warm_up``: it isn't measured, as every config's first turn.
    ``loads``: configs of this rotation have loaders of their own, which make nothing between their turns.
    """

    kind: ClassVar[str] = "switch"
    turn: int
    config: Mapping[str, Value]
    warm_up: bool = False
    loads: bool = False


@dataclass(frozen=True)
class LoaderStarted:
    """A config of a rotation got the first batch of a loader of its own, so many ``seconds`` after that was made.

    ``workers``: how many it has. ``respawns``: in a trial of its own each epoch would begin so.
    """

    kind: ClassVar[str] = "loader-started"
    config: Mapping[str, Value]
    seconds: float
    workers: int
    respawns: bool = True


@dataclass(frozen=True)
class ConfigCompiled:
    """A config of a rotation was compiled before its first turn: ``graphs``, in ``seconds`` that no turn holds."""

    kind: ClassVar[str] = "config-compiled"
    config: Mapping[str, Value]
    seconds: float
    graphs: int


@dataclass(frozen=True)
class DisturbedTurn:
    """A turn of a rotation doesn't count. ``reason``: what it held besides training; continues a sentence."""

    kind: ClassVar[str] = "disturbed-turn"
    turn: int
    reason: str


@dataclass(frozen=True)
class LeftRotation:
    """A config of a rotation has no more turns. ``reason`` continues a sentence of which the config is the subject.

    ``behind``: it did nothing wrong, and was far slower than the fastest one in the turns that it had, which count.
    """

    kind: ClassVar[str] = "left"
    config: Mapping[str, Value]
    reason: str
    behind: bool = False
