"""Whether a config moves the weights of a screen as the script as written does. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeGuard

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
        written, own = paths_of(pair.baseline), paths_of(pair.candidate)
        known = {group: path for group, path in written.items() if is_read(path)}
        if known and not own:
            return unknown(CheckKind.WEIGHTS, MOVEMENT, _MOST), _UNREAD
        counterparts = matched(written, own)
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


def paths_of(outcome: Outcome) -> dict[Group, float | None]:
    """How far each group went, in the order in which they were met; None of one that couldn't be read."""
    changes = outcome.measurement.weights if outcome.measurement is not None else ()
    alike: Counter[str] = Counter()
    paths: dict[Group, float | None] = {}
    for change in changes:
        paths[change.group, alike[change.group]] = change.path if change.steps else None
        alike[change.group] += 1
    return paths


def fewest_looks(outcome: Outcome) -> int:
    """How often the group of weights that was looked at least was seen to have moved, after a step, or after a call of
    several; 0 where one of them couldn't be read, or there is none.
    """
    changes = outcome.measurement.weights if outcome.measurement is not None else ()
    return min((change.steps for change in changes), default=0)


def matched(written: Mapping[Group, float | None], own: Mapping[Group, float | None]) -> dict[Group, Group]:
    """Group as written → that of the config: one of the same shapes; of the others each in its turn.

    Of several of the same shapes the one that went as far among them; in which order they were met says nothing. Where
    one of those couldn't be read each is matched in its turn.
    """
    same: dict[Group, Group] = {}
    for shapes in dict.fromkeys(shapes for shapes, _ in written):
        before, after = ([group for group in paths if group[0] == shapes] for paths in (written, own))
        if all(is_read(written[group]) for group in before) and all(own[group] is not None for group in after):
            before.sort(key=lambda group: -_length(written[group]))
            after.sort(key=lambda group: -_length(own[group]))
        same |= dict(zip(before, after, strict=False))
    taken = {*same.values()}
    others = zip((g for g in written if g not in same), (g for g in own if g not in taken), strict=False)
    return same | dict(others)


def is_read(path: float | None) -> TypeGuard[float]:
    return path is not None and math.isfinite(path)


def _length(path: float | None) -> float:
    """What isn't a number any more went nowhere."""
    return path if is_read(path) else 0.0
