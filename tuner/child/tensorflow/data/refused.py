"""What becomes of one knob in a dataset: changes that it doesn't allow, and places where one was made."""

from __future__ import annotations

from dataclasses import dataclass


class Refused(Exception):
    """A change that this dataset doesn't allow; the text is the reason, as a short clause.

    ``final``: cutting the ready batches anew is no way around it either. ``of_value``: another value may be allowed.
    """

    def __init__(self, reason: str, *, final: bool = False, of_value: bool = False) -> None:
        super().__init__(reason)
        self.final, self.of_value = final, of_value


@dataclass
class Applied:
    """What became of one knob in the datasets that were adapted: places seen, places changed, why not.

    ``size``: of the new batches, where their size is the knob. ``of_value``: what is refused is this value, and another
    one may be allowed.
    """

    sites: int = 0
    changed: int = 0
    refused: str = ""
    size: int = 0
    of_value: bool = False

    @classmethod
    def not_for(cls, error: Exception, knob: str) -> Applied:
        """Changed nowhere, for that: the dataset refuses it, or a function of the script can't do with it. Whether it
        could do with another value is asked of batch sizes alone.
        """
        of_value = error.of_value if isinstance(error, Refused) else knob == "batch_size"
        return cls(1, 0, reason_of(error), of_value=of_value)


def reason_of(error: Exception) -> str:
    """Its text, for people, and its type where it isn't of ours."""
    return str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {line_of(error)}"


def line_of(error: Exception) -> str:
    """The first line of its text, of 200 characters at most."""
    return (str(error).strip().splitlines() or [""])[0][:200]
