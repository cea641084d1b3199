"""Whether a config moves the weights of a screen as the script as written does. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from tuner.analysis.checks import Check, CheckKind, Pair, unknown
from tuner.analysis.stats import Noninferiority
from tuner.model import Outcome

MOVEMENT = "movement of the weights"
LEAST_MOVEMENT = 0.01
"""Of the way that a group's weights go as written: below, they are held to stand still."""
_MOST = 1 - LEAST_MOVEMENT
_UNREAD = "its weights can't be read as those of the script as written can: whether all of them move isn't known"
Group = tuple[str, int]
"""What tells a group of weights from those of other shapes, and its number among those of the same."""


def movement_check(pairs: Sequence[Pair]) -> tuple[Check | None, str]:
    """How far each group of weights went over all runs, against the script as written, and what else there is to say.

    None where that wasn't seen as written. Inconclusive where it is the config's weights that couldn't be read.
    """
    before: dict[Group, float] = defaultdict(float)
    after: dict[Group, float] = defaultdict(float)
    for pair in pairs:
        written, own = _paths(pair.baseline), _paths(pair.candidate)
        known = {group: path for group, path in written.items() if path is not None and math.isfinite(path)}
        if known and not own:
            return unknown(CheckKind.WEIGHTS, MOVEMENT, _MOST), _UNREAD
        counterparts = _matched(written, own)
        for group, path in known.items():
            counterpart = counterparts.get(group)
            # A group that was never met is one of which nothing took a step.
            moved = 0.0 if counterpart is None else own[counterpart]
            if moved is None:
                return unknown(CheckKind.WEIGHTS, MOVEMENT, _MOST), _UNREAD
            before[group] += path
            after[group] += moved
    shares = [after[group] / path for group, path in before.items() if path > 0]
    if not shares:
        return None, ""
    # What isn't a number any more is no movement either.
    least = min(share if math.isfinite(share) else 0.0 for share in shares)
    verdict = Noninferiority.PASS if least >= LEAST_MOVEMENT else Noninferiority.FAIL
    went, goes, missing = sum(before.values()), sum(after.values()), 1 - least
    return Check(CheckKind.WEIGHTS, MOVEMENT, went, goes, missing, missing, missing, _MOST, verdict), ""


def _paths(outcome: Outcome) -> dict[Group, float | None]:
    """How far each group went, in the order in which they were met; None of one that couldn't be read."""
    changes = outcome.measurement.weights if outcome.measurement is not None else ()
    alike: Counter[str] = Counter()
    paths: dict[Group, float | None] = {}
    for change in changes:
        paths[change.group, alike[change.group]] = change.path if change.steps else None
        alike[change.group] += 1
    return paths


def _matched(written: Mapping[Group, object], own: Mapping[Group, object]) -> dict[Group, Group]:
    """Group as written → that of the config: the one of the same shapes; of the others each in its turn."""
    same = {group: group for group in written if group in own}
    others = zip((g for g in written if g not in same), (g for g in own if g not in same), strict=False)
    return same | dict(others)
