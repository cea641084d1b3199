"""The one rule by which a requested knob is held against what was observed; no framework in it.

Who set the knob decides what a difference means. Where our patch set it, the config didn't take effect. Where the user
bound it to an argument of the script, the script may make of its argument what it likes ("16" may mean float16, and a
batch of 64 may be split over four devices): a difference proves nothing, and the knob was applied all the same.

An adapter looks at what ran and calls ``compare``, or ``inapplicable`` where there is nothing for the knob to act on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .records import Evidence, Value, plain_value

BY_OPTION = "by an option of the script or of its trainer"
ITS_OWN = "what the script makes of its argument is its own"


class SetBy(StrEnum):
    """Who applies a knob: a patch of ours, an option of the script or its trainer, an argument that the user bound."""

    PATCH = "patch"
    OPTION = "option"
    ARGUMENT = "argument"


@dataclass(frozen=True)
class Finding:
    """What observation says of one knob. ``sites``: places where it could act; ``changed``: where it did;
    ``of_value``: as ``KnobReport`` has it.
    """

    evidence: Evidence
    reason: str = ""
    observed: Value | None = None
    sites: int = 1
    changed: int = 1
    of_value: bool | None = None


def compare(
    requested: Value,
    observed: object,
    set_by: SetBy,
    *,
    sites: int = 1,
    changed: int = 1,
    why: str = "",
) -> Finding:
    """What it means that ``observed`` ran where ``requested`` was asked for. Both in the same words.

    ``why``: the reason for a difference, where the adapter knows it. A knob that no patch of ours set has no sites.
    """
    value = None if observed is None else plain_value(observed)
    if observed == requested:
        if set_by is SetBy.PATCH:
            return Finding(Evidence.VERIFIED, "", value, sites, changed)
        return Finding(Evidence.VERIFIED, BY_OPTION, value, 0, 0)
    if set_by is SetBy.ARGUMENT:
        return Finding(Evidence.UNVERIFIABLE, f"{why or f'observed {observed}'}; {ITS_OWN}", value, sites, changed)
    back = "the option was set back, or had been read before"
    reason = f"observed {observed}: {back if set_by is SetBy.OPTION else 'something in the script set it back'}"
    return Finding(Evidence.CONTRADICTED, why or reason, value, sites, changed)


def inapplicable(reason: str, set_by: SetBy, *, sites: int = 1) -> Finding:
    """There is nothing here that the knob could act on, as far as the adapter can see.

    Never so for a knob that is bound to an argument: the script took it, and may well act on it where no adapter looks.
    """
    if set_by is SetBy.ARGUMENT:
        return Finding(Evidence.UNVERIFIABLE, f"{reason}; {ITS_OWN}", None, sites, 0)
    return Finding(Evidence.NOT_APPLICABLE, reason, None, sites, 0, of_value=False)


def at_work_anyway(reason: str, observed: Value | None = None) -> Finding:
    """What runs with the requested value is what runs as the script is written: of other values that says nothing."""
    return Finding(Evidence.NOT_APPLICABLE, reason, observed, of_value=True)


_FORMAT_WORDS = {
    "float32": ("fp32", "tf32", "bf16-math", "float32", "float", "single", "32", "no"),
    "bfloat16": ("bf16", "bfloat16"),
    "float16": ("fp16", "float16", "half", "16"),
}


def number_format(word: object) -> str:
    """The format that a precision computes in, "float32", "bfloat16" or "float16"; "" for words that nobody knows.

    In our words, or in those that a script's own argument may take: "16-mixed", "mixed_bfloat16", "torch.half".
    """
    plain = str(word).lower().removeprefix("torch.").removeprefix("tf.").removeprefix("mixed_")
    plain = plain.removesuffix("-mixed").removesuffix("-true")
    return next((name for name, words in _FORMAT_WORDS.items() if plain in words), "")
