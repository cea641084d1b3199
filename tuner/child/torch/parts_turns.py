"""A smaller batch size in a config's turns of a rotation: the model computes the script's batches in parts.

The effective batch is kept, and so are the script's loader, its batches, its loss and its steps: nothing but the
outermost call of the model is made otherwise (see ``parts``).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..records import Value
from .compiling import KNOB as COMPILE
from .parts import KNOB as PARTS
from .watches import TorchWatches

SIZE = "batch_size"
KNOBS = (SIZE, PARTS)
OTHER_STEPS = "another effective batch makes other steps, and needs a start"


class PartsTurns:
    """Switches in how many parts a batch is computed."""

    def __init__(self, watches: TorchWatches) -> None:
        self._watches = watches
        self._session = watches.session
        self._parts = watches.modules.parts

    def refusal(self, config: Mapping[str, Value]) -> str:
        """Why the config's batches can't be had here, continuing "can't be switched to: "; "" where they can."""
        if SIZE not in config and PARTS not in config:
            return ""
        size, parts, steps = config.get(SIZE), config.get(PARTS), self._watches.steps
        if steps.together <= 1 and round(steps.backwards / max(1, steps.steps)) > 1:
            return "the script accumulates gradients itself"
        if type(size) is not int or type(parts) is not int or parts < 2 or size * parts != self._written():
            return OTHER_STEPS
        if not self._session.knobs.is_free(PARTS):
            return f"{PARTS} can't be turned while it trains"
        if COMPILE in config:
            return "parts of a batch aren't compiled beside other configs"
        return self._parts.obstacle()

    def to(self, config: Mapping[str, Value]) -> None:
        """The config has its turn."""
        parts, size = config.get(PARTS, 1), config.get(SIZE)
        self._parts.choose(int(parts), size if type(size) is int else None)

    def doubt(self, config: Mapping[str, Value]) -> str:
        """What of the config isn't as it has to be, or ""."""
        if PARTS not in config or self._parts.observed == config[PARTS]:
            return ""
        why = self._parts.obstacle()
        return f"batches were computed whole{': ' if why else ''}{why}"

    def _written(self) -> object:
        """The script's own batch size; None where nothing tells."""
        known, primary = self._session.request.knowledge.as_written, self._watches.loaders.sources.primary
        return known.get(SIZE, primary.written[SIZE] if primary is not None else None)
