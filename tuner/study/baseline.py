"""Why a script that gives no figure as it was written can't be tuned, and what would mend that."""

from __future__ import annotations

from pathlib import Path

from tuner.errors import UntunableError, UserScriptError
from tuner.model import Outcome, OutcomeKind


def refusal(outcome: Outcome, log: Path) -> UserScriptError | UntunableError:
    """The error to raise for a script that gives no figure as it was written. ``log`` is what it printed."""
    if outcome.kind is OutcomeKind.USER_ERROR and outcome.reason in ("script-raised", "script-failed"):
        return UserScriptError(
            f"the script fails by itself: {outcome.detail}",
            hint=f"all that it printed is in {log}; mend it and run the same command again",
            traceback_text=outcome.traceback_text,
        )
    return UntunableError(
        outcome.detail or f"{outcome.kind}: {outcome.reason}", hint=_HINTS.get(outcome.reason, f"see {log}")
    )


_HINTS = {
    "no-step": "a step is an optimizer's step(); a script that has none can tell of its own with tuner.report(step=n)",
    "too-short": "let it train longer: more epochs or more data",
    "deadline": "give a trial more time with --trial-timeout",
    "no-progress": "the script stands still; does it wait for something, such as a download or an answer?",
    "device-oom": "the script as written doesn't fit the device: choose a smaller batch or another device",
    "host-oom": "the script as written doesn't fit the machine's memory: use fewer workers or raise --max-memory",
    "nan": "its loss is not a number as written: tune it once it trains",
}
