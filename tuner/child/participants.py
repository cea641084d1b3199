"""What a session asks of those that take part in its trial, and what it tells them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .words import Value


class Switcher(Protocol):
    """Changes the config of a script between two of its steps. See ``rotation``."""

    def obstacle(self) -> str:
        """Why no config can be switched in this script, of which that continues a sentence; "" where some can."""
        ...

    def refusal(self, config: Mapping[str, Value]) -> str:
        """Why it can't be switched to this one, continuing a sentence of which the config is the subject, or ""."""
        ...

    def begin(self) -> None:
        """Keeps the script's own settings, its weights and what its optimizers remember."""

    def to(self, config: Mapping[str, Value]) -> None:
        """Switches: what the config doesn't turn is as the script has it. May raise whatever the framework raises."""

    def doubt(self, config: Mapping[str, Value]) -> str:
        """What of the config didn't take effect in the steps since the first switch to it, or ""."""
        ...

    def disturbed(self, config: Mapping[str, Value]) -> str:
        """What the config's turn held besides training, so that it doesn't count, or ""."""
        return ""

    def put_back_weights(self) -> None:
        """The weights, and what the optimizers remember, are what they were at the beginning."""

    def loads(self, config: Mapping[str, Value]) -> bool:
        """Whether batches are made for this config alone, and in its own turns only."""
        return False

    def leave(self, config: Mapping[str, Value]) -> None:
        """The config has no more turns: what was kept for it may go."""
        return

    def end(self) -> None:
        """There are no more turns: what was kept for any config may go."""
        return


class ClockHooks(Protocol):
    """What the clock asks of the framework that trains; see ``StepClock``."""

    def synchronize(self) -> None:
        """Waits until the device is done with all that it was given; called when a block ends."""

    def activity(self) -> int:
        """A number that changes with whatever a steady window must not hold: a compilation, a skipped fp16 step."""
        return 0

    def on_block(self) -> None:
        """Called after each block: the place to read what makes the device wait, such as the loss."""

    def ready(self) -> float | None:
        """Samples that lie ready for the loop: made, and not fetched yet. None where that can't be seen."""
        return None

    def may_go_off(self) -> bool:
        """Whether the steps that the loop takes now can go without autotune's instruments; see ``Instruments``."""
        return False

    def switcher(self) -> Switcher | None:
        """What changes the script's config between two steps; None where nothing can."""
        return None


class ScriptOptions(Protocol):
    """The options that the script itself has for knobs."""

    @property
    def is_wanted(self) -> bool:
        """Whether what a parser of the script's has parsed is to be told by ``parsed``."""
        return False

    def parsed(self, options: Mapping[str, tuple[str, Any]], put: Callable[[str, Value], None]) -> None:
        """A parser has these, by their names: the flag ("" of an argument without one) and the value.

        ``put`` gives one another value before the script reads it; it may raise where the parser refuses that.
        """
        return

    def value(self, knob: str) -> Value | None:
        """What the option of the knob's name holds; None where there is none."""
        return None

    def flag(self, knob: str) -> str:
        """The flag of that option; "" where there is none."""
        return ""

    def observe(self) -> None:
        """Adds what was seen of them to the facts; called after the adapters."""
        return


class ExitListener(Protocol):
    """Is told how the trial ends."""

    def script_ended(self) -> None:
        """The script ended by itself, without an error."""
        return

    def leaving(self) -> None:
        """The process is about to leave without the script's exit handlers."""
