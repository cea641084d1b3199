"""Knobs bound to the script's own arguments: ``--batch_size={batch_size}``, ``--width={width=64|128|256}``.

Three forms, in any argument:

- ``{knob}``: the baseline is run without that argument, so the script's own default applies. A token that is
  nothing but the placeholder takes the option before it along.
- ``{knob=64}``: the baseline is run with 64.
- ``{knob=64|128|256}``: the same, and these are the values worth trying; needed for a knob of one's own.

Anything else in braces is left as it is (JSON, for instance); ``{{name}}`` stands for a literal ``{name}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.errors import UnknownKnobError, UsageError
from tuner.knowledge import typed_value
from tuner.model import Value, same_value
from tuner.space.declare import Knob, SearchSpace

_PLACEHOLDER = re.compile(
    r"\{\{(?P<literal>[a-z_][a-z0-9_]*)\}\}|\{(?P<knob>[a-z_][a-z0-9_]*)(?:=(?P<values>[^{}]*))?\}"
)


@dataclass(frozen=True)
class Placeholder:
    """A knob bound to an argument. ``default`` is the script's own value, None where only the script knows it.

    ``choices`` are the values that the user wrote, the default among them; empty where there is at most one.
    """

    knob: str
    default: Value | None = None
    choices: tuple[Value, ...] = ()


def parse(argv: Sequence[str]) -> dict[str, Placeholder]:
    """Knob → its placeholder in the script's arguments. Raises ``UsageError`` for one that can't be run."""
    placeholders: dict[str, Placeholder] = {}
    for position, token in enumerate(argv):
        matches = [match for match in _PLACEHOLDER.finditer(token) if match["knob"]]
        for match in matches:
            placeholder = _placeholder(match)
            first = placeholders.setdefault(placeholder.knob, placeholder)
            if repr(first) != repr(placeholder):  # equality takes true for 1
                raise UsageError(
                    f"{{{placeholder.knob}}} stands in the arguments twice, with different values",
                    hint="write the same values at every place",
                )
            if placeholder.default is None:
                _check_removable(argv, position, match[0], alone=len(matches) == 1)
    return placeholders


def render(argv: Sequence[str], config: Mapping[str, Value]) -> tuple[str, ...]:
    """The arguments for one config; a knob that it lacks has the default, or its argument is left out."""
    result: list[str] = []
    for token in argv:
        text = _rendered(token, config)
        if text is not None:
            result.append(text)
        elif _is_option_value(token) and result and _is_flag(result[-1]):
            result.pop()
    return tuple(result)


def extend_space(space: SearchSpace, placeholders: Mapping[str, Placeholder]) -> SearchSpace:
    """The space with the arguments' own knobs and choices. Raises ``UnknownKnobError`` for one without any choice.

    Its own knobs come first: they are the user's wish, and what they choose between may decide what else there is.
    """
    own: list[Knob] = []
    knobs = [_with_choices(knob, placeholders.get(knob.name)) for knob in space.knobs]
    declared = {knob.name for knob in space.knobs}
    for placeholder in placeholders.values():
        if placeholder.knob in declared:
            continue
        if not placeholder.choices:
            names = ", ".join(sorted(declared))
            raise UnknownKnobError(
                f"{{{placeholder.knob}}} in the script's arguments is no knob of {space.name!r}",
                hint=f"give its values, as in {{{placeholder.knob}=1|2|4}}, the script's own first; or write"
                f" {{{{{placeholder.knob}}}}} if the braces are meant literally; the knobs are: {names}",
            )
        own.append(_own_knob(placeholder))
    larger = _with_choices(space.larger, placeholders.get(space.larger.name)) if space.larger is not None else None
    return replace(space, knobs=(*own, *knobs), larger=larger)


def bound_knobs(placeholders: Mapping[str, Placeholder]) -> dict[str, Value | None]:
    """Knob → the script's own value, None where only the script knows it."""
    return {knob: placeholder.default for knob, placeholder in placeholders.items()}


def _placeholder(match: re.Match[str]) -> Placeholder:
    if match["values"] is None:
        return Placeholder(match["knob"])
    texts = match["values"].split("|")
    if "" in texts:
        raise UsageError(
            f"{match[0]} has an empty value", hint=f"write {{{match['knob']}=64}} or {{{match['knob']}=64|128}}"
        )
    values = tuple(typed_value(text) for text in texts)
    return Placeholder(match["knob"], values[0], values if len(values) > 1 else ())


def _check_removable(argv: Sequence[str], position: int, text: str, *, alone: bool) -> None:
    """The baseline drops the argument: that must not leave half an option or shift a positional one."""
    token = argv[position]
    hint = f"give the script's own value there, as in {{{text[1:-1]}=64}}"
    if not alone:
        raise UsageError(f"{token!r} holds several placeholders, and {text} has no value", hint=hint)
    if token == text and not (position and _is_flag(argv[position - 1])):
        raise UsageError(f"{text} is a positional argument: the script can't be run without it", hint=hint)


def _rendered(token: str, config: Mapping[str, Value]) -> str | None:
    """The token with its placeholders filled in, None where the baseline is to be run without it."""
    parts: list[str] = []
    end = 0
    for match in _PLACEHOLDER.finditer(token):
        parts.append(token[end : match.start()])
        end = match.end()
        if match["literal"]:
            parts.append(f"{{{match['literal']}}}")
        elif match["knob"] in config:
            parts.append(_text_of(config[match["knob"]], match["values"]))
        elif match["values"] is not None:
            # The text and not the typed value: 1e-3 is to stay as it was written.
            parts.append(match["values"].split("|")[0])
        else:
            return None
    return "".join(parts) + token[end:]


def _text_of(value: Value, texts: str | None) -> str:
    """The value as the user wrote it among the choices: a script that takes ``true`` may not take ``True``."""
    for text in texts.split("|") if texts is not None else ():
        if same_value(typed_value(text), value):
            return text
    return str(value)


def _is_option_value(token: str) -> bool:
    match = _PLACEHOLDER.fullmatch(token)
    return match is not None and bool(match["knob"])


def _is_flag(token: str) -> bool:
    return token.startswith("-") and "=" not in token and token != "--"


def _with_choices(knob: Knob, placeholder: Placeholder | None) -> Knob:
    """The knob with the values that the user wrote: counts stay counts, but words are the script's own."""
    if placeholder is None or placeholder.default is None:
        return knob
    if knob.value_type is int:
        for value in (placeholder.default, *placeholder.choices):
            knob.check(value)
    else:
        knob = replace(knob, value_type=None)
    if not placeholder.choices:
        return knob
    choices = placeholder.choices
    return replace(knob, choices=lambda known: choices, told=None, ordered=knob.ordered and _numbers(choices))


def _own_knob(placeholder: Placeholder) -> Knob:
    choices = placeholder.choices
    # Nobody has said what it changes, so it counts as what may change most.
    return Knob(
        placeholder.knob, lambda known: choices, "argument of the script", tier=3, ordered=_numbers(choices), own=True
    )


def _numbers(values: Sequence[Value]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
