"""Whether a profile's config may be applied: it comes from a file that anyone may have written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tuner.errors import UsageError
from tuner.model import Config, Value, same_value
from tuner.space.arguments import Placeholder
from tuner.space.declare import Knob, Known, SearchSpace

_WORD = re.compile(r"[\w.+-]{1,40}")


def check_applicable(
    config: Config, known: Known, spaces: Sequence[SearchSpace], placeholders: Mapping[str, Placeholder]
) -> None:
    """Raises ``UsageError`` for what isn't a knob, and for a value that a knob doesn't take.

    A knob is one that a space declares, one that the arguments of the script bind, or one that the script asks for by
    name (``tuner.suggested``). Of words only those pass that a study could have tried on this device.
    """
    for name, value in config.items():
        placeholder = placeholders.get(name)
        if placeholder is not None and placeholder.choices:
            if not any(same_value(value, choice) for choice in placeholder.choices):
                raise UsageError(f"{name}={value!s:.60} is none of the values that the script's arguments give it")
            continue
        knobs = [knob for space in spaces for knob in space.knobs if knob.name == name]
        if knobs:
            _check(knobs, value, replace(known, as_written=known.knowledge.as_written.get(name)))
        elif placeholder is None and name not in known.knowledge.suggested:
            raise UsageError(f"{name!r:.60} is no knob of an installed search space")
        elif isinstance(value, str) and not _WORD.fullmatch(value):
            raise UsageError(
                f"{name}={value!s:.60} is no single word",
                hint=f"where the script's arguments bind it, write its values, as in {{{name}=...|...}}",
            )


def beyond_cores(
    config: Config, known: Known, spaces: Sequence[SearchSpace], proven_on: int | None
) -> list[str]:
    """The knobs that the config sets to more threads or processes than there are cores, unless the script does so.

    Nor those that make batches where more of them than cores were proven: they wait. ``proven_on``: the cores there;
    None where that isn't known, or the config isn't what was proven.
    """
    names = {knob.name for space in spaces for knob in space.knobs if knob.on_cores}
    waits = {knob.name for space in spaces for knob in space.knobs if knob.waits_at_times and proven_on is not None}
    written = known.knowledge.as_written
    return [
        name
        for name, value in config.items()
        if name in names and isinstance(value, int) and value > known.cores
        and not (name in waits and value > (proven_on or 0)) and not same_value(value, written.get(name))
    ]


def _check(knobs: Sequence[Knob], value: Value, known: Known) -> None:
    """Raises the last error where none of the knobs of one name, each of another space, takes the value."""
    errors: list[UsageError] = []
    for knob in knobs:
        try:
            knob.check(value)
            if knob.value_type is str and not _is_word_of(knob, str(value), known):
                raise UsageError(f"{knob.name}={value!s:.60}: that is none of its values here")
        except UsageError as error:
            errors.append(error)
        else:
            return
    raise errors[-1]


def _is_word_of(knob: Knob, word: str, known: Known) -> bool:
    """Whether a study may have set the knob to this word: one that it offers here, or that the script wrote.

    Profiles of earlier versions may not say what the device offers: then any single word passes.
    """
    try:
        offered = list(knob.choices(known))
    except Exception:  # a declaration may rely on what honest knowledge holds
        return False
    return _WORD.fullmatch(word) is not None and (not offered or word in (*offered, known.as_written))
