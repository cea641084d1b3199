"""What best.json says of a study that proved nothing: its best candidate, and what that lacked."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tuner.documents import plain
from tuner.result import StudyResult


def candidate_of(result: StudyResult) -> dict[str, Any] | None:
    """The best config that isn't proven, for whoever wants to look further."""
    winner, best = result.winner, result.best
    if result.improved:
        return None
    if winner is not None and winner.config:
        reason = {"reason": winner.label} if winner.label else {}
        return {"config": dict(winner.config), "speedup": plain(asdict(winner.speedup)), "proven": False, **reason}
    if best is None or not best.config or result.best_gain is None:
        return None
    return {"config": dict(best.config), "single_trial_gain": result.best_gain, "proven": False}


def lacked_time_of(result: StudyResult) -> dict[str, Any] | None:
    """The fastest candidate that lacked nothing but time for its proof, and with which budget the study goes on."""
    late = result.lacked_time
    if late is None:
        return None
    return {
        "config": dict(late.config), "single_trial_gain": late.gain, "budget_s": late.budget_s,
        "first": dict(late.first),
    }  # fmt: skip
