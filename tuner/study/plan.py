"""What a study is to do: the script, the device, what may be turned, and the bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tuner.analysis.accuracy import AccuracyLimits
from tuner.analysis.contention import Host
from tuner.child.records import Window
from tuner.child.watch import Watch
from tuner.devices.present import host_of
from tuner.knowledge import BOTH
from tuner.model import BASELINE, Config, Device, Script
from tuner.objective import Objective
from tuner.runner.request import Limits
from tuner.space.choose import Spaces
from tuner.storage.folder import DATABASE


@dataclass(frozen=True)
class StudyPlan:
    """One study. ``trials`` counts the baseline and the search, anchors and finals come on top; None is unbounded.

    ``script.argv`` may hold placeholders such as ``{batch_size}``. ``patience`` ends the search after so many
    trials in a row without a gain worth having. The baseline is measured again every ``anchor_every`` trials.
    Finals have ``finals_rounds``, and up to ``most_rounds`` while they are undecided; where there is time nothing else
    uses, ``looks_beyond`` more looks, each after half as many rounds again. ``effective_batch`` says
    whether samples per optimizer step may change: ``keep``, ``free``, or ``both``, where larger ones are a contest of
    their own (tier 3). ``probe``: whether it begins with one where there is
    time for it. ``without``: the watches that the user switched off. ``source``: the file that is run, of a module as
    of a script; None where nobody says. ``energy_unknown``: of the ``host`` and the ``device``, why their energy isn't
    counted, for people; nothing of what is. ``ranks``: so many processes train the script together.
    ``keras_backend``: with what Keras computes, unless the script chooses that by itself; "" where it isn't known.
    """

    name: str
    script: Script
    device: Device
    folder: Path
    spaces: Spaces
    objective: Objective
    selection: tuple[str, ...] = ()
    pinned: Config = BASELINE
    trials: int | None = None
    budget_s: float | None = None
    accuracy: AccuracyLimits = field(default_factory=AccuracyLimits)
    limits: Limits = field(default_factory=Limits)
    window: Window = field(default_factory=Window)
    seed: int = 0
    cores: int = 1
    spare_cores: int = 0
    software: Mapping[str, str] = field(default_factory=dict)
    keras_backend: str = ""
    energy_unknown: Mapping[str, str] = field(default_factory=dict)
    finals_rounds: int = 5
    most_rounds: int = 27
    looks_beyond: int = 2
    anchor_every: int = 8
    finalists: int = 3
    patience: int | None = 25
    effective_batch: str = BOTH
    probe: bool = True
    without: frozenset[Watch] = frozenset()
    source: Path | None = None
    ranks: int = 1

    @property
    def cores_of_a_rank(self) -> int:
        """Those that each rank has for its own threads and workers."""
        return max(1, self.cores // self.ranks)

    @property
    def host(self) -> Host:
        """The machine around the study's measurements."""
        return host_of(self.device, self.cores, self.spare_cores)

    @property
    def url(self) -> str:
        """The address of its database, in its folder."""
        return f"sqlite:///{self.folder.absolute() / DATABASE}"
