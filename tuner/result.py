"""What a study found, as one record: ``run_study`` fills it, reports and exporters read it.

Seconds and bytes. Every field is a value: nothing here has to be fetched or loaded by whoever reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.analysis.accuracy import Screened
from tuner.analysis.bottleneck import Bottleneck
from tuner.analysis.gain import is_left_open
from tuner.analysis.learning import LATER, gives_no_loss
from tuner.analysis.stats import Noninferiority
from tuner.knowledge import Knowledge
from tuner.model import (
    SIDELINES,
    Config,
    Device,
    LeftOut,
    Measurement,
    OutcomeKind,
    Phase,
    Ratio,
    Script,
    Shift,
    TierBest,
    Trial,
    Verdict,
    Winner,
    baseline_of,
)
from tuner.objective import RATE, Objective


@dataclass(frozen=True)
class StudyLimits:
    """The bounds that every config of the study had to respect; None where there is none.

    ``effective_batch`` is ``keep``, ``free`` or ``both``. The accuracy limits are relative: 0.01 is one percent.
    ``screen_samples`` is what each run of a screen trains on, None where the study chooses; ``metric_patterns`` are the
    regular expressions of metrics that are read from what the script prints.
    """

    max_host_bytes: int | None
    max_device_bytes: int | None
    trial_timeout_s: float
    effective_batch: str
    max_loss_increase: float | None = None
    min_sample_efficiency: float | None = None
    max_metric_drop: Mapping[str, float] = field(default_factory=dict)
    max_metric_rise: Mapping[str, float] = field(default_factory=dict)
    screen_samples: int | None = None
    metric_patterns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyFacts:
    """What was studied, where and within which limits, as its plan says. ``software`` is name → version.

    ``cores`` are those of the host that the trials might use; None where that isn't known.
    ``energy_unknown``: of the ``host`` and the ``device``, why none of their energy is counted; nothing of what is.
    ``ranks``: so many processes trained the script together.
    """

    name: str
    folder: str
    script: Script
    device: Device
    limits: StudyLimits
    software: Mapping[str, str] = field(default_factory=dict)
    cores: int | None = None
    energy_unknown: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 1


@dataclass(frozen=True)
class LargerBatch:
    """The best config that makes the effective batch larger (tier 3), held against the script as written.

    ``gain`` is of its single trial. ``winner`` is what finals say of its speed, None without any; its verdict is on the
    time to a loss. ``efficiency`` is the share of the samples as from which it learns, ``sooner`` how many times sooner
    it reaches a loss: speed times efficiency. Both have intervals as wide as those of several contests have to be, and
    are None where that isn't known. ``why`` says for people why it isn't proven, "" where it is.
    """

    config: Config
    gain: float
    winner: Winner | None = None
    efficiency: Ratio | None = None
    sooner: Ratio | None = None
    why: str = ""

    @property
    def proven(self) -> bool:
        """Whether it is shown to reach a loss sooner than the script as written."""
        return self.winner is not None and self.winner.verdict is Verdict.IMPROVED


@dataclass(frozen=True)
class LackOfTime:
    """The fastest candidate that lacked nothing but time for its proof.

    ``gain`` is of its single trial. With ``budget_s`` the same command goes on, and has the time to prove ``first``:
    the same config, another one whose finals have begun, or a larger batch (tier 3) that is worth more.
    """

    config: Config
    gain: float
    budget_s: float
    first: Config


MOST_DISTURBED = 1 / 3
"""Of a search whose trials were disturbed more often nothing is concluded but what the finals prove."""


@dataclass(frozen=True)
class StudyResult:
    """What a study found.

    ``winner`` is what the finals say; None where none were run. ``best`` is the best single trial, and ``best_gain``
    its ratio to the baseline: neither proves anything. ``why`` says in a few words what ended the search.
    ``screened`` says how candidates learned, ``shifts`` where the machine drifted.
    ``space`` is the name of the search space, "" where none was chosen; ``left_out`` says why knobs of it were not
    searched; ``tiers`` what each knob may change: 1 nothing but speed, 2 the numerics, 3 the optimisation.
    ``bests`` are the best configs of each tier. ``knowledge`` is what applying a config needs in the child.
    ``broke_it`` are the watches that broke the script, and were left out; ``fault`` is the file that tells of it.
    ``disturbed`` of the search trials with a figure were disturbed by others. ``baseline_disturbed`` is what disturbed
    the script as written where ``best_gain`` is by such runs alone, "" where nothing did. ``winner``, ``best`` and
    ``best_gain`` keep the effective batch, unless that was free; ``larger`` is the best config that makes it larger,
    None where none was measured, and ``no_larger`` says why none was tried, "" where that wasn't asked for.
    ``objective`` is what gains are by: how much sooner a loss is reached is told where it is a rate. ``lacked_time`` is
    the fastest candidate that keeps the effective batch and had no time for its proof; None where there is none.
    With ``untried_budget_s`` the same command has the time to try a config, which it hadn't; None where it had.
    """

    study: StudyFacts
    trials: tuple[Trial, ...]
    winner: Winner | None
    best: Trial | None = None
    best_gain: float | None = None
    why: str = ""
    seconds: float = 0.0
    interrupted: bool = False
    screened: tuple[Screened, ...] = ()
    shifts: tuple[Shift, ...] = ()
    bottleneck: Bottleneck | None = None
    space: str = ""
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    tiers: Mapping[str, int] = field(default_factory=dict)
    bests: tuple[TierBest, ...] = ()
    knowledge: Knowledge = field(default_factory=Knowledge)
    broke_it: tuple[str, ...] = ()
    fault: str = ""
    disturbed: int = 0
    baseline_disturbed: str = ""
    larger: LargerBatch | None = None
    no_larger: str = ""
    objective: Objective = RATE
    lacked_time: LackOfTime | None = None
    untried_budget_s: float | None = None

    @property
    def cannot_tell(self) -> str:
        """Why it isn't known that nothing is faster, for people: too many trials were disturbed; "" where it is."""
        measured = [t for t in self.trials if t.phase is Phase.SEARCH and t.measurement is not None]
        if self.improved or self.disturbed < MOST_DISTURBED * len(measured) or not self.disturbed:
            return ""
        others = "other processes or the hypervisor disturbed"
        return f"{others} {self.disturbed} of the {len(measured)} trials of the search"

    @property
    def left_open(self) -> str:
        """Why the study's answer is that it can't tell, for people; "" where it is another one: to keep the config as
        well as a gain, proven or not, and that what is faster reaches a loss later.
        """
        winner, best = self.winner, self.best
        hinted = winner is None and best is not None and bool(best.config)
        return "" if hinted or (winner is not None and winner.label == LATER) else self.cannot_tell

    @property
    def untellable(self) -> bool:
        """Whether screens compare losses alone, and the script shows none: what needs one is left open."""
        limits = self.study.limits
        bounds = (limits.max_loss_increase, limits.min_sample_efficiency)
        compares = bounds != (None, None) and not (limits.max_metric_drop or limits.max_metric_rise)
        return compares and gives_no_loss(baseline_of(self.trials))

    @property
    def roughness(self) -> str:
        """Why ``best_gain`` is a rough one beside being that of a single trial, for people; "" where it isn't."""
        by_that = f"the script as written was disturbed when it was measured: {self.baseline_disturbed}"
        return self.cannot_tell or (by_that if self.baseline_disturbed else "")

    @property
    def rough_gains(self) -> frozenset[Config]:
        """The configs whose gain in a single trial is only approximate, whatever the machine did meanwhile."""
        searched = (trial for trial in self.trials if trial.phase is Phase.SEARCH)
        return frozenset(trial.config for trial in searched if is_left_open(trial))

    @property
    def improved(self) -> bool:
        """Whether the finals proved a config to be faster than the script as written."""
        return self.winner is not None and self.winner.verdict is Verdict.IMPROVED

    def speaks_against(self, config: Config) -> bool:
        """Whether the study's record holds a failed run of the config, of any phase but probes, or a screen of it that
        didn't pass. What there was no time for says nothing."""
        runs = (trial for trial in self.trials if trial.config == config and trial.phase not in SIDELINES)
        failed = any(
            run.outcome is not None and not run.outcome.complete and run.outcome.kind is not OutcomeKind.UNFINISHED
            for run in runs
        )
        screens = (each for each in self.screened if each.config == config and not each.lacked_time)
        return failed or any(screened.verdict is not Noninferiority.PASS for screened in screens)

    @property
    def baseline(self) -> Measurement | None:
        """What the baseline measured before the search; None where it has no figure."""
        baseline = baseline_of(self.trials)
        return baseline.outcome.measurement if baseline is not None and baseline.outcome is not None else None

    @property
    def validation_share(self) -> float | None:
        """The share of its time in which the script as written validates; None where no run of it was seen to.

        Rates are without it. The baseline's own run says it, which is the longest one, else the first that can.
        """
        runs = [trial.measurement for trial in self.trials if not trial.config and trial.phase not in SIDELINES]
        shares = (run.validation_share for run in runs if run is not None)
        return next((share for share in shares if share is not None), None)
