"""Secrets among a script's arguments: told by what their options are called, and left out of what is stored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

MASK = "(hidden)"
"""Stands for a secret's value."""
_SECRET = re.compile(
    r"(?:^|[-_.])(?:token|api[-_]?key|password|passwd|passphrase|secret|secret[-_]?key|access[-_]?key|private[-_]?key|credentials?)$"
)
# Words that a language model reads, and how many of them.
_OF_TEXT = re.compile(
    r"(?:^|[-_.])(?:pad|eos|bos|unk|sep|cls|mask|special|stop|start|end|image|max|min|num|per|extra|new|prompt)"
    r"[-_]?token$"
)
_IN_ADDRESS = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(@)")
# Shape of a model rather than a key: a number of tokens.
_COUNT = re.compile(r"[-+]?\d{1,6}(?:\.\d+)?")
_HARMLESS = frozenset({"", "true", "false", "yes", "no", "none", "null", MASK})


def masked(argv: Sequence[str]) -> tuple[str, ...]:
    """The arguments with ``MASK`` in the place of each secret. Masking them twice changes nothing."""
    result = list(argv)
    for index, name, value in _values(argv):
        if _is_secret(name, value):
            result[index] = argv[index].removesuffix(value) + MASK
    return tuple(_IN_ADDRESS.sub(rf"\1{MASK}\2", argument) for argument in result)


def secret_options(argv: Sequence[str]) -> tuple[str, ...]:
    """The options whose values are taken for secrets, as they are written."""
    return tuple(dict.fromkeys(name for _, name, value in _values(argv) if _is_secret(name, value)))


def is_masked(argv: Sequence[str]) -> bool:
    """Whether a secret was taken out of these arguments: then they can't be run."""
    return any(MASK in argument for argument in argv)


def _values(argv: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Index of the argument, option and value: of ``--name value``, ``--name=value`` and ``name=value``."""
    for index, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        before = argv[index - 1] if index else ""
        if before.startswith("-") and "=" not in before and not argument.startswith("-"):
            yield index, before, argument
        if equals and re.fullmatch(r"[-+]*[A-Za-z][\w.-]*", name):
            yield index, name, value


def _is_secret(name: str, value: str) -> bool:
    plain = name.lstrip("-+").lower()
    if value.lower() in _HARMLESS or re.fullmatch(r"\{.*\}", value):
        return False  # a switch, or a knob's place
    if plain.endswith("token") and _COUNT.fullmatch(value):
        return False
    return _SECRET.search(plain) is not None and _OF_TEXT.search(plain) is None
