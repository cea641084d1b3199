"""Words of the protocol: what a record or a request may say where it has a few choices."""

from __future__ import annotations

from enum import StrEnum

Value = bool | int | float | str
"""What a knob may be set to."""


INSTRUMENTS = "autotune's own instruments"
"""What a remark calls them that says which part of a step they take: by it a study knows that it was said."""


class Evidence(StrEnum):
    """What observation says of a knob that was asked for."""

    VERIFIED = "verified"
    CONTRADICTED = "contradicted"
    UNVERIFIABLE = "unverifiable"
    NOT_APPLICABLE = "not applicable"


class Mode(StrEnum):
    """Whether a run is measured, or only has its config applied."""

    TRIAL = "trial"
    APPLY = "apply"


class Phase(StrEnum):
    """What a block is of: the warm-up, or the steady window."""

    WARMUP = "warmup"
    WINDOW = "window"


class ProbeSide(StrEnum):
    """The part of the training loop that a probe runs by itself."""

    COMPUTE = "compute"
    LOADER = "loader"
