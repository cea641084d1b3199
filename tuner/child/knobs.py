"""The knobs of one trial: which are asked for, who applies each, and what is reported of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from . import evidence
from .evidence import Finding, SetBy
from .recorder import Recorder
from .records import Evidence, KnobReport, Value

EFFECTIVE_BATCH = ("batch_size", "grad_accumulation")
"""The knobs that decide on how many samples an optimizer step trains."""
FAILED = "a look at what ran failed, which is a fault of autotune's"


def not_as_studied(whose: str, size: object, known: Value | None) -> str:
    """Why batches of ``size`` samples stay as they are where the config is for those of ``known``, beginning with whose
    they are; "" where they are these, or either isn't known. Those of the config, or the parts that it computes them
    in, make up batches of the script as it was studied: of others they would make steps of another size.
    """
    if type(known) is not int or type(size) is not int or size == known:
        return ""
    return f"{whose} {size} samples, and the config is for those of {known}"


class Knobs:
    """Each knob is applied once: by a patch of ours, by an option of the script or its trainer, or by an argument.

    ``requested``: the config. ``arguments``: knobs that the user bound to arguments of the script. ``ended_early``:
    whether the script ended before a knob could show; asked when one is reported.
    """

    def __init__(
        self,
        recorder: Recorder,
        requested: Mapping[str, Value],
        arguments: Collection[str],
        ended_early: Callable[[], bool],
    ) -> None:
        self.requested = requested
        self.arguments = frozenset(arguments)
        self.kept_by_script: dict[str, str] = {}
        """Knob → why the script's own value stays."""
        self.refused: dict[str, str] = {}
        """Knob → why its option doesn't take the config's value."""
        self.trainer_options: dict[str, object] = {}
        """Knob → the value that the script gives its trainer; None where it leaves it to the trainer."""
        self.reported: dict[str, Evidence] = {}
        self._recorder = recorder
        self._ended_early = ended_early
        self._delegated = set(arguments)
        self._inapplicable: dict[str, str] = {}
        self._listeners: list[Callable[[str], None]] = []

    # who applies a knob

    def wants(self, knob: str) -> bool:
        """Whether the config turns the knob, and a patch of ours is what applies it."""
        return knob in self.requested and knob not in self._delegated

    def is_free(self, knob: str) -> bool:
        """Whether nothing of the script's or its trainer's sets the knob: a patch of ours may."""
        return knob not in self._delegated and knob not in self.kept_by_script

    def wanted(self, knob: str) -> Value | None:
        """What a patch of ours has to set the knob to; None where it must not."""
        return self.requested[knob] if self.wants(knob) else None

    def set_by(self, knob: str) -> SetBy:
        """Who applies the knob."""
        if knob in self.arguments:
            return SetBy.ARGUMENT
        return SetBy.OPTION if knob in self._delegated else SetBy.PATCH

    def delegate(self, knob: str) -> None:
        """An option of the script or of its trainer applies the knob from here on: the patch for it must not."""
        if knob not in self._delegated:
            self._delegated.add(knob)
            for listener in self._listeners:
                listener(knob)

    def on_delegation(self, listener: Callable[[str], None]) -> None:
        """Has the listener called with each knob that is delegated from here on: a watch may act on it already."""
        self._listeners.append(listener)

    def keep_script_value(self, knob: str, reason: str) -> None:
        """The script gives its trainer a value of its own: nothing here may fight it."""
        self.kept_by_script[knob] = reason
        if self.wants(knob):
            self._inapplicable[knob] = reason
            self.delegate(knob)

    # what is reported

    def look(self, looks: Iterable[Callable[[], None]], note: Callable[[str], None]) -> None:
        """Does all of these looks at what ran, which report knobs. What goes wrong in one is noted, and costs no other;
        knobs of ours of which nothing was reported can't be told then.
        """
        failed = False
        for look in looks:
            try:
                look()
            except Exception as error:
                note(f"observation failed: {type(error).__name__}: {error}")
                failed = True
        for knob in self.requested if failed else ():
            if self.wants(knob) and knob not in self.reported:
                self.report(knob, Finding(Evidence.UNVERIFIABLE, FAILED))

    def compare(self, knob: str, observed: object, *, sites: int = 1, changed: int = 1, why: str = "") -> None:
        """Reports a requested knob by what ran, in the config's own words; see ``evidence.compare``."""
        requested, set_by = self.requested[knob], self.set_by(knob)
        self.report(knob, evidence.compare(requested, observed, set_by, sites=sites, changed=changed, why=why))

    def inapplicable(self, knob: str, reason: str, *, sites: int = 1) -> None:
        """Reports that nothing is there for the knob to act on; see ``evidence.inapplicable``."""
        self.report(knob, evidence.inapplicable(reason, self.set_by(knob), sites=sites))

    def report(self, knob: str, finding: Finding) -> None:
        """Sends what was found of a knob; nothing, where the config doesn't ask for it. The last report counts."""
        if knob in self._inapplicable:
            finding = Finding(Evidence.NOT_APPLICABLE, self._inapplicable[knob], None, finding.sites, 0, False)
        elif finding.evidence is Evidence.CONTRADICTED and knob in self.refused:
            finding = replace(finding, reason=self.refused[knob])
        elif finding.evidence is Evidence.CONTRADICTED and self._ended_early():
            # What ended the script so early is the news, not that a knob had no time to show.
            reason = "the script ended before it could show"
            finding = Finding(Evidence.UNVERIFIABLE, reason, finding.observed, finding.sites, finding.changed)
        if knob in self.requested:
            self.reported[knob] = finding.evidence
            self._recorder.emit(
                KnobReport(
                    knob, self.requested[knob], finding.sites, finding.changed, finding.evidence, finding.reason,
                    finding.observed, finding.of_value,
                )
            )  # fmt: skip

    def doubt(self, knob: str, reason: str) -> None:
        """Takes back that a knob was verified: what else it may have changed couldn't be seen."""
        if self.reported.get(knob, Evidence.VERIFIED) is Evidence.VERIFIED:
            self.report(knob, Finding(Evidence.UNVERIFIABLE, reason))
