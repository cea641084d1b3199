"""Records of steps and blocks, the window that they make up, and how ranks of a trial ended; see ``records``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .words import Phase


@dataclass(frozen=True)
class Window:
    """When a trial's steady window starts and ends. Seconds; half-widths are relative.

    With ``until_samples`` it ends there, and not for the sake of precision; it ends early where the rate is sure to
    stay below ``hopeless_below`` samples per second (``StepClock`` says how sure).
    """

    warmup_steps: int = 10
    warmup_s: float = 3.0
    block_s: float = 0.25
    min_blocks: int = 12
    min_s: float = 3.0
    max_s: float = 20.0
    target_half_width: float = 0.02
    until_samples: float = 0.0
    hopeless_below: float = 0.0


@dataclass(frozen=True)
class FirstStep:
    """Seconds from the launch to the end of the first step; a fork server had spent ``spared_s`` of them before it."""

    kind: ClassVar[str] = "first_step"
    seconds: float
    spared_s: float = 0.0


@dataclass(frozen=True)
class Block:
    """Consecutive steps, timed together; ``flagged`` blocks hold validation.

    ``ready_before``, ``ready_after``: samples that lay ready for the loop when it began and ended; None where that
    can't be seen, or an epoch's last batches had been asked for. ``tokens``: of the samples, padding left out.
    ``starts``: iterations that began; ``start_s``: what they took to their first batch, a part of ``wait_s``.
    ``turn``: the number of the turn that it was measured in, 0 where nothing takes turns.
    Of one of several ranks, ``at`` is the number of steps that it had taken when the block ended, and ``alone_s`` what
    its steps took from their beginning to their backward, where ranks wait for each other; 0 where there is one.
    ``instruments_s``: what autotune's own instruments took, as far as that was told; no part of ``seconds``.
    """

    kind: ClassVar[str] = "block"
    phase: Phase
    steps: int
    samples: float
    seconds: float
    wait_s: float
    flagged: bool = False
    ready_before: float | None = None
    ready_after: float | None = None
    tokens: float = 0.0
    starts: int = 0
    start_s: float = 0.0
    turn: int = 0
    at: int = 0
    alone_s: float = 0.0
    instruments_s: float = 0.0


@dataclass(frozen=True)
class RankEnded:
    """The process of one of several ranks ended by itself, says what started it; ``status`` as ``waitpid`` gives it."""

    kind: ClassVar[str] = "rank_ended"
    status: int
