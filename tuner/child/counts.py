"""What is counted of a script, as parts of what is known of it: declared here, sent within ``records.Knowledge``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ScalerCounts:
    """Optimizer steps under a gradient scaler, and those that it skipped; late ones come after its first ones."""

    steps: int = 0
    skipped: int = 0
    late_steps: int = 0
    late_skipped: int = 0


@dataclass(frozen=True)
class EpochUse:
    """An epoch of the data that train: its batches, its samples, the processes that load them.

    ``first_s``: seconds from the first iteration's beginning to its first batch; ``later_s``: on average, of the
    ``later`` iterations that were seen to begin. ``respawns``: each iteration starts its workers anew.
    ``taken``: batches that the script takes of it on average, where it breaks its iterations off; 0 where it takes all
    of them, or that isn't known.
    """

    batches: int
    samples: float
    workers: int = 0
    first_s: float = 0.0
    later: int = 0
    later_s: float = 0.0
    respawns: bool = False
    taken: float = 0.0

    def begun(self, samples: float) -> float:
        """How many iterations begin for so many samples."""
        whole = samples / self.samples
        return whole * self.batches / self.taken if self.taken else whole


@dataclass(frozen=True)
class RowPlace:
    """A dimension in which the samples of the batches lie that a loop makes by itself.

    ``call``: the class of the model that is called, or the traced function. ``array``: the number of one among the
    arrays that it is given, ``dimension`` one of that array's, ``rows_per_sample`` what it holds for each sample.
    """

    call: str
    array: int
    dimension: int
    rows_per_sample: int = 1


@dataclass(frozen=True)
class Schedule:
    """A learning-rate scheduler, what it was told of its length (``T_max``, milestones), how often it was stepped."""

    name: str
    horizon: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0
