"""Checks what is stored of trials against what each trial's folder holds: its raw records, its request, its outcome."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from tuner.analysis.measurement import Beside, all_of, knob_reports, last_of, measurement_of
from tuner.analysis.ranks import united
from tuner.analysis.rotation import rotation_of
from tuner.child.records import Evidence, Failure, WindowEnd
from tuner.child.wire import Entry, decode_request
from tuner.masking import MASK
from tuner.model import TOOK_THE_STUDY_DOWN, Config, Measurement, Outcome, OutcomeKind, Reference, Rotated, Trial
from tuner.storage import codec
from tuner.storage.folder import OUTCOME, RECORDS, REFERENCE, REFERENCE_RESOURCES, REQUEST, RESOURCES, trial_folder
from tuner.storage.records import read_records, read_resources

_ROUNDING = 1e-9
"""Relative. The last digits of a logarithm or an exponential differ from one machine's library to another's."""
_OUT_OF_MEMORY = frozenset({"device-oom", "host-oom"})


@dataclass
class Audit:
    """What came of a check: a line for each thing that is ``different`` from what the folders hold.

    ``unchecked`` says of what nothing is left to check it by → the numbers of the trials.
    """

    different: list[str] = field(default_factory=list)
    unchecked: dict[str, list[int]] = field(default_factory=dict)

    def lacks(self, what: str, number: int) -> None:
        """Notes that nothing is left to check ``what`` of that trial by."""
        self.unchecked.setdefault(what, []).append(number)


def audit(
    folder: Path, trials: Iterable[Trial], numbers: Collection[int] = (), begun: Collection[int] = ()
) -> Audit:
    """Holds each finished trial against its own folder in the study's ``folder``.

    ``numbers`` are those of all trials that the database knows: they are given without gaps, so that one that was taken
    out of it, such as a run of the finals that didn't suit, shows. ``begun``: those that had a folder before it was
    asked, for a study may go on meanwhile.
    """
    found = Audit(_gone(numbers, begun))
    for trial in trials:
        raw = trial_folder(folder, trial.number)
        try:
            lines = [*_figures(found, raw, trial), *_asked(found, raw, trial), *_ended(found, raw, trial)]
        except OSError as error:
            lines = [f"its records can't be read: {error.strerror} ({error.filename})"]
        found.different += [f"trial {trial.number}: {text}" for text in lines]
    return found


def _gone(numbers: Collection[int], begun: Collection[int]) -> list[str]:
    if not numbers:
        return []
    gone = {*range(max(numbers) + 1), *begun} - {*numbers}
    return [f"trial {number}: the database doesn't have it any more" for number in sorted(gone)]


def _figures(found: Audit, raw: Path, trial: Trial) -> list[str]:
    """Whether the measurement, and that there is none, follow from the raw records."""
    outcome = trial.outcome
    if outcome is None:
        return []
    entries = read_records(raw / RECORDS)
    beside = Beside(read_records(raw / REFERENCE), read_resources(raw / REFERENCE_RESOURCES))
    derived = measurement_of(entries, read_resources(raw / RESOURCES), beside)
    if not entries and outcome.measurement is None:
        found.lacks("how they ended", trial.number)
        return []
    if outcome.kind is OutcomeKind.CRASHED and outcome.reason == TOOK_THE_STUDY_DOWN:
        return []  # whoever would have told what it came to died with it
    if outcome.measurement is not None:
        lines = _differences(outcome.measurement, derived)
    else:
        lines = ["it has no figures, its records give some"] if derived is not None else []
    if _ranked(outcome.rotation) != _ranked(rotation_of(entries, read_resources(raw / RESOURCES))):
        lines.append("what it says of the configs of its rotation isn't what its records give")
    return [*lines, *_kind(outcome, united(entries), derived)]


def _ranked(rotation: Sequence[Rotated]) -> list[tuple[Config, int, tuple[float, ...]]]:
    """What there is to compare of a rotation. Reasons may have had secrets in them."""
    ends = [(each.gain.ratio, each.gain.low, each.gain.high) if each.gain is not None else () for each in rotation]
    rounded = [tuple(float(f"{end:.9g}") for end in of) for of in ends]
    return [(each.config, each.pairs, of) for each, of in zip(rotation, rounded, strict=True)]


def _kind(outcome: Outcome, entries: list[Entry], derived: Measurement | None) -> list[str]:
    """What the child's records alone decide: a whole window without a fault is complete, and a fault isn't.

    How the process ended isn't kept; where the records leave it to that, nothing is said.
    """
    records = [entry.record for entry in entries]
    window = last_of(records, WindowEnd)
    whole = window is not None and window.complete and derived is not None
    faults = [record.reason for record in all_of(records, Failure) if not (whole and record.reason in _OUT_OF_MEMORY)]
    faults += ["contradicted" for report in knob_reports(records) if report.evidence is Evidence.CONTRADICTED]
    over_a_limit = outcome.kind is OutcomeKind.INFEASIBLE and outcome.reason in _OUT_OF_MEMORY
    told = f"{outcome.kind} ({outcome.reason})" if outcome.reason else str(outcome.kind)
    if outcome.kind is OutcomeKind.COMPLETE and faults:
        return [f"it is {told}, its records tell of {faults[0]}"]
    if outcome.kind is OutcomeKind.COMPLETE and derived is None and outcome.measurement is None:
        return [f"it is {told}, its records give no figures"]
    if whole and not faults and outcome.kind is not OutcomeKind.COMPLETE and not over_a_limit:
        return [f"it is {told}, its records are those of a complete one"]
    if over_a_limit and outcome.measurement is None and whole and not faults:
        return [f"it is {told}, its records are those of a complete one"]
    return []


def _asked(found: Audit, raw: Path, trial: Trial) -> list[str]:
    """Whether the child ran what the trial says: its config, its seed, its samples, its side of the loop."""
    try:
        request = decode_request((raw / REQUEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        found.lacks("with which config they ran", trial.number)
        return []
    except ValueError:
        return [f"its {REQUEST} can't be read"]
    lines = []
    if trial.config != Config(request.config):
        lines.append(f"its config is {_short(dict(trial.config))}, its {REQUEST} says {_short(dict(request.config))}")
    for name, own, asked in (
        ("seed", trial.seed, request.seed),
        ("samples", trial.samples, request.window.until_samples if trial.samples is not None else None),
        ("side", trial.side.in_child if trial.side is not None else None, request.probe),
    ):
        if own != asked:
            lines.append(f"its {name} is {own}, its {REQUEST} says {asked}")
    return lines


def _ended(found: Audit, raw: Path, trial: Trial) -> list[str]:
    """Whether the database has the outcome that was written when the trial ended."""
    try:
        written = codec.decode_outcome((raw / OUTCOME).read_bytes())
    except FileNotFoundError:
        found.lacks("what was written at their end", trial.number)
        return []
    except ValueError:
        return [f"its {OUTCOME} can't be read"]
    outcome = trial.outcome
    if outcome is None or (outcome.kind, outcome.reason) == (written.kind, written.reason):
        return []
    return [f"it is {outcome.kind} ({outcome.reason}), its {OUTCOME} says {written.kind} ({written.reason})"]


def _differences(stored: Measurement, derived: Measurement | None) -> list[str]:
    if derived is None:
        return ["its records give no measurement"]
    different = []
    for field_ in fields(Measurement):
        own, again = getattr(stored, field_.name), getattr(derived, field_.name)
        if field_.name == "peak_device_bytes":
            own, again = own or None, again or None  # earlier versions wrote 0 where nobody told
        if field_.name in ("warmup_extra_s", "spared_s", "wanted_cpus") and own is None:
            continue  # earlier versions knew none
        if isinstance(own, Reference) and isinstance(again, Reference):  # nor these
            foreign = None if own.foreign_cpus is None else again.foreign_cpus
            share = None if own.own_share is None else again.own_share
            again = replace(again, foreign_cpus=foreign, own_share=share)
        if not _same(own, again) and MASK not in repr(own):
            different.append(f"{field_.name} is {_short(own)}, its records give {_short(again)}")
    return different


def _same(own: Any, again: Any) -> bool:
    """Whether two figures are equal, but for the last digits of numbers. NaN is equal to itself, a tuple to a list."""
    if isinstance(own, float) and isinstance(again, float):
        return math.isclose(own, again, rel_tol=_ROUNDING) or (math.isnan(own) and math.isnan(again))
    if isinstance(own, (tuple, list)) and isinstance(again, (tuple, list)):
        return len(own) == len(again) and all(map(_same, own, again))
    if isinstance(own, Mapping) and isinstance(again, Mapping):
        return own.keys() == again.keys() and all(_same(own[key], again[key]) for key in own)
    if is_dataclass(own) and type(own) is type(again):
        return all(_same(getattr(own, each.name), getattr(again, each.name)) for each in fields(own))
    return bool(own == again)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
