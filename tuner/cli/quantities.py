"""Sizes and durations as people write them: ``20GiB``, ``0.9`` of what there is, ``30m``, ``1h30m``."""

from __future__ import annotations

import math
import re

from tuner.errors import UsageError

_BYTES = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_BYTES |= {"KI": 1024, "MI": 1024**2, "GI": 1024**3, "TI": 1024**4}
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_SIZE = re.compile(rf"{_NUMBER}\s*(%|[KMGT]?I?B?)", re.IGNORECASE)
_DURATION_PART = re.compile(rf"{_NUMBER}\s*(ms|sec|s|min|m|h|d|)\s*", re.IGNORECASE)


def parse_bytes(text: str, total: int) -> int:
    """Bytes of a size (``20GiB``), or of a share of ``total`` (``0.9``, ``90%``).

    A bare number up to 1 is a share: one byte is never meant. Raises ``UsageError``.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise _refused("size", text, "write a size such as 20GiB or 800MB, or a share such as 0.9 or 90%")
    number, unit = float(match[1]), match[2].upper()
    if unit == "%" or (unit == "" and number <= 1):
        share = number / 100 if unit == "%" else number
        if not 0 < share <= 1:
            raise _refused("share", text, "a share is above 0 and at most 1 (100%)")
        if total <= 0:
            raise _refused("share", text, "the total is not known here: write a size such as 20GiB")
        return int(share * total)
    if unit == "":
        raise _refused("size", text, f"name the unit, as in {match[1]}GiB, or write a share of at most 1")
    size = int(number * _BYTES[unit.removesuffix("B")])
    if size <= 0:
        raise _refused("size", text, "a size must be above zero")
    return size


def parse_fraction(text: str) -> float:
    """A fraction written as ``0.01`` or ``1%``, from 0 up to 1. Raises ``UsageError``."""
    match = re.fullmatch(rf"{_NUMBER}\s*(%?)", text.strip())
    if match is None:
        raise _refused("fraction", text, "write a fraction such as 1% or 0.01")
    fraction = float(match[1]) / (100 if match[2] else 1)
    if not 0 <= fraction <= 1:
        raise _refused("fraction", text, "a fraction is between 0 and 1 (100%)")
    return fraction


def seconds_of(option: str, text: str) -> float:
    """Seconds of a duration that an option was given. Raises ``UsageError`` naming the option."""
    try:
        return parse_seconds(text)
    except UsageError as error:
        raise UsageError(f"--{option}: {error.message}", hint=error.hint) from error


def parse_seconds(text: str) -> float:
    """Seconds of a duration: ``90``, ``90s``, ``30m``, ``1h30m``, ``250ms``. Raises ``UsageError``."""
    hint = "write a duration such as 90s, 30m, 1h30m or 2d"
    stripped = text.strip()
    position, seconds = 0, 0.0
    while position < len(stripped):
        match = _DURATION_PART.match(stripped, position)
        # A number without a unit is seconds, but only alone: "1h30" could mean either.
        if match is None or (not match[2] and match[0] != stripped):
            raise _refused("duration", text, hint)
        seconds += float(match[1]) * _SECONDS[match[2].lower()]
        position = match.end()
    if not 0 < seconds < math.inf:
        raise _refused("duration", text, hint)
    return seconds


def _refused(what: str, text: str, hint: str) -> UsageError:
    return UsageError(f"invalid {what} {text!r}", hint=hint)
