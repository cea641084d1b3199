"""best.json, schema 1: the winner of each device, with its proof. Documented in tuner/export/README.md."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tuner.analysis.circumstances import Circumstances
from tuner.analysis.fleet import FINALS, SINGLE_TRIAL
from tuner.analysis.resources import DEVICE, why_no_card_energy
from tuner.analysis.tiers import Tiers
from tuner.child.option_names import is_option_of
from tuner.documents import depth, knob_document, measurement_document, plain, screen_document, text, tier_document
from tuner.errors import ProfileError
from tuner.export import tier3, unproven
from tuner.export.speedup import knobs_in_vain, read_speedup
from tuner.export.tier3 import Tier3
from tuner.knowledge import FREE, Knowledge, as_document
from tuner.knowledge import read as read_knowledge
from tuner.masking import all_without_secrets, masked
from tuner.model import BASELINE, Config, Device, Measurement, Ratio, Script, Verdict
from tuner.result import StudyResult

SCHEMA = 1
CHECKSUM = "checksum"
_DEEPEST = 100
"""A study that met a deeper file at its end would lose its result over it."""
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)
_NO_BOUNDS = frozenset({"trial_timeout_s", "effective_batch"})


@dataclass(frozen=True)
class Profile:
    """One device's entry of a best.json, read back.

    ``cores`` are those of the host that the proof might use, ``edited`` whether the entry isn't as a study wrote it;
    None where the profile is of an earlier version. ``tier3``: the larger effective batch beside the config. ``ranks``:
    so many processes trained together when it was proven. ``cannot_tell``: why it isn't known that nothing is faster,
    "" where it is, something is proven to be, or the profile is of an earlier version. ``interval``: what the speed-up
    is by 95%. ``objective``: its name and unit, "" in a profile of an earlier version. ``limits``: those of the study,
    as they are written; nobody has validated them. ``in_vain``: knobs that met nothing to turn in the proof.
    """

    device: Device
    config: Config
    verdict: Verdict
    script: Script
    environment: Mapping[str, str]
    knowledge: Knowledge
    speedup: float | None
    cores: int | None = None
    edited: bool | None = None
    tier3: Tier3 | None = None
    ranks: int = 1
    cannot_tell: str = ""
    interval: Ratio | None = None
    objective: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    in_vain: frozenset[str] = frozenset()

    @property
    def larger(self) -> Config:
        """The config with a larger effective batch that is proven beside this one; {} without one."""
        is_proven = self.tier3 is not None and self.tier3.verdict is Verdict.IMPROVED
        return self.tier3.config if self.tier3 is not None and is_proven else BASELINE

    @property
    def devices(self) -> int:
        """On so many devices of one process it was proven."""
        return self.knowledge.devices

    @property
    def circumstances(self) -> Circumstances:
        """What it was proven with."""
        known = self.knowledge
        return Circumstances(self.script, self.environment, known.module_hashes, self.cores, known.backend)


class ProfileExporter:
    """best.json: this device's profile among those of other devices, and of other numbers of ranks."""

    name = "result"
    file_name = "best.json"

    def check(self, existing: bytes, place: str) -> None:
        """Raises ``ProfileError`` where the file is not a best.json: the profiles in it could not be kept."""
        documents(existing, place)

    def serialize(self, result: StudyResult, existing: bytes | None) -> bytes | None:
        """The file with this device's profile in place of its earlier one; None where nothing was measured.

        A proof that the file holds already stays where ``with_standing`` says so.
        Raises ``ProfileError`` where ``existing`` is no best.json.
        """
        if result.best is None:
            return None
        place = f"{result.study.folder}/{self.file_name}"
        profile = profile_of(result)
        if existing is not None:
            standing = with_standing(existing, result, profile, place)
            return existing if standing is None else merged(existing, standing, place)
        return merged(existing, profile, place)


def profile_of(result: StudyResult) -> dict[str, Any]:
    """The profile as JSON's own types. Without a proof its config is empty: keep what the script says."""
    study, winner = result.study, result.winner
    proven = winner if winner is not None and result.improved else None
    config = proven.config if proven is not None else BASELINE
    larger = result.larger.winner if result.larger is not None else None
    winners = [one for one in (winner, larger) if one is not None and result.objective.is_rate]
    tier = Tiers(result.tiers, result.knowledge).of(config)
    told = {
        "accuracy": _accuracy(result, config, tier),
        "screens": [{"config": dict(screen.config), **screen_document(screen, winners)} for screen in result.screened],
        "tier3": tier3.document_of(result),
        "knobs": [knob_document(report) for report in proven.winner.knobs] if proven is not None else [],
    }
    return {
        "device": asdict(study.device),
        "cores": study.cores,
        **({"ranks": study.ranks} if study.ranks > 1 else {}),
        "config": dict(config),
        "objective": result.objective.text,
        "verdict": str(Verdict.IMPROVED if proven is not None else Verdict.KEEP_BASELINE),
        "speedup": plain(asdict(winner.speedup)) if winner is not None else None,
        "runs": winner.runs if winner is not None else 0,
        "baseline": _baseline(result),
        "winner": _measured(proven.winner, FINALS) if proven is not None else None,
        "candidate": unproven.candidate_of(result),
        "lacked_time": unproven.lacked_time_of(result),
        "doubt": "" if result.improved else result.roughness,
        "cannot_tell": result.left_open,
        "tiers": [tier_document(best) for best in result.bests],
        # Trials that an earlier version ran may tell secrets where they say why.
        **all_without_secrets(told, study.script.argv),
        "limits": plain(asdict(study.limits)),
        "energy_unknown": _energy_unknown(result),
        "environment": dict(study.software),
        "script": {
            "path": study.script.path, "module": study.script.module, "sha256": study.script.sha256,
            "argv": list(masked(study.script.argv)),
        },
        "study": {
            "name": study.name, "folder": study.folder, "trials": len(result.trials), "seconds": result.seconds,
            "ended": result.why, "interrupted": result.interrupted,
        },
        "knowledge": plain(as_document(replace(result.knowledge, batch_waits=()))),  # they chose values, and apply none
    }  # fmt: skip


def merged(existing: bytes | None, profile: Mapping[str, Any], place: str) -> bytes:
    """The file with this device's profile in place of its earlier one. Raises ``ProfileError``."""
    profiles = documents(existing, place) if existing is not None else []
    others = [other for other in profiles if not same_entry(other, profile)]
    own = {**profile, CHECKSUM: checksum(profile)}
    return (text({"schema": SCHEMA, "profiles": [*others, own]}) + "\n").encode()


def checksum(profile: Mapping[str, Any], whole: Callable[[str], float] = float) -> str:
    """What shows whether a profile is as it was written: SHA-256 of its other fields, as JSON with sorted names.

    Numbers go in as floats: a tool that lays a file out anew may write 1.0 as 1. Once 1 went in as it was (``int``).
    """
    others = {name: entry for name, entry in profile.items() if name != CHECKSUM}
    written = json.loads(json.dumps(others, default=str), parse_int=whole)
    return hashlib.sha256(json.dumps(written, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def with_standing(
    existing: bytes, result: StudyResult, profile: dict[str, Any], place: str
) -> dict[str, Any] | None:
    """The study's ``profile`` with the proofs for this very device that the file holds and that it leaves standing, of
    the config or of ``tier3``; None where both are the file's own.

    They were given for the same script, modules, arguments, software and objective, within the same limits but that of
    time; no run and no screen of their configs failed in this study, and it had no finals of its own for them: those
    decide. The entry is as it was written. Earlier versions didn't say the objective: there it passes for the same.
    """
    for other in documents(existing, place):
        is_alike = _circumstances({"objective": profile["objective"], **other}) == _circumstances(profile)
        if not (is_alike and same_entry(other, profile) and _is_sound(other)):
            continue
        proven, larger = other.get("verdict") == str(Verdict.IMPROVED), tier3.proven_in(other.get("tier3"))
        own = proven and not profile["runs"] and not result.speaks_against(Config(_part(other, "config")))
        beside = larger is not None and not _part(profile, "tier3").get("runs") and not result.speaks_against(larger)
        if own and (beside or larger is profile["tier3"] is None):
            return None
        taken = {**(other if own else profile), "tier3": (other if beside else profile)["tier3"]}
        return {name: entry for name, entry in taken.items() if name != CHECKSUM}
    return profile


def _circumstances(profile: Mapping[str, Any]) -> dict[str, Any]:
    """What a proof is given for. Limits that an earlier version didn't write are taken for unset."""
    script, limits, known = (_part(profile, name) for name in ("script", "limits", "knowledge"))
    return {
        "script": [script.get(name) for name in ("path", "module", "sha256", "argv")],
        "modules": known.get("module_hashes", {}), "backend": known.get("backend", ""),
        "software": profile.get("environment"), "objective": profile.get("objective"),
        "limits": {name: most for name, most in limits.items() if most not in (None, {}) and name not in _NO_BOUNDS},
        # Where larger batches are tried beside, what keeps the effective one is proven alike.
        "free": limits.get("effective_batch") == FREE,
    }


def _part(profile: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object in the profile; empty where something else stands there: nobody has validated it yet."""
    part = profile.get(name)
    return part if isinstance(part, dict) else {}


def read(content: bytes, place: str) -> list[Profile]:
    """The profiles of a best.json. Raises ``ProfileError`` naming the place and what is wrong there."""
    profiles = []
    for number, document in enumerate(documents(content, place)):
        try:
            profiles.append(_profile(document))
        except _MALFORMED as error:
            raise ProfileError(
                f"{place}: profiles[{number}] does not match schema {SCHEMA}: {type(error).__name__}: {error}",
                hint="run autotune study again to rewrite it",
            ) from error
    return profiles


def choose(
    profiles: list[Profile], device: Device, cores: int, place: str, *, ranks: int = 1, devices: int = 1
) -> Profile:  # fmt: skip
    """The profile of this very device, else of its model; of several one that was proven in as many ``ranks``, else in
    one process, of these one on as many ``devices`` of one process, and of these one with as many ``cores``.

    Raises ``ProfileError`` naming those there are.
    """
    same_kind = [p for p in profiles if p.device.kind == device.kind]
    same_card = [p for p in same_kind if p.device.uuid == device.uuid]
    same_model = [p for p in same_kind if p.device.name == device.name]
    for profile in sorted(
        same_card or same_model,
        key=lambda p: (p.ranks != ranks, p.ranks != 1, p.devices != devices, p.cores != cores, p.cores is None),
    ):
        return profile
    there = ", ".join(f"{p.device.label} ({p.device.name})" for p in profiles) or "none"
    raise ProfileError(
        f"{place} has no profile for {device.label} ({device.name}); it has: {there}",
        hint=f"tune it here: autotune study SCRIPT --device {device.label}",
    )


def of_tier_3(profile: Profile, place: str) -> Profile:
    """The profile with the larger effective batch in place of its config, and how much sooner that reaches a loss.

    Raises ``ProfileError`` where none is proven.
    """
    larger = tier3.proven(profile.tier3, profile.device.label, place)
    return replace(profile, config=larger.config, verdict=Verdict.IMPROVED, speedup=larger.sooner)


def _accuracy(result: StudyResult, config: Config, tier: int) -> dict[str, Any]:
    """What is known of how the config learns. Knobs of tier 1 change nothing that it could learn from."""
    for screen in result.screened:
        if config and screen.config == config:
            winners = [result.winner] if result.winner is not None and result.objective.is_rate else []
            return {"tier": tier, **screen_document(screen, winners)}
    return {"tier": tier, "verdict": "not-needed" if tier == 1 else "not-screened"}


def _baseline(result: StudyResult) -> dict[str, Any] | None:
    """From the finals; without them from the one trial that the search began with. Validation is told from any run."""
    if result.winner is not None:
        document = _measured(result.winner.baseline, FINALS)
    elif result.baseline is not None:
        document = _measured(result.baseline, SINGLE_TRIAL)
    else:
        return None
    return {**document, "validation_share": result.validation_share}


def _energy_unknown(result: StudyResult) -> dict[str, str]:
    """Why no energy is told: nothing counts it here, or what does says nothing of these figures."""
    winner = result.winner
    told = [winner.winner, winner.baseline] if winner is not None else [result.baseline]
    reasons = [why_no_card_energy(measurement) for measurement in told if measurement is not None]
    of_the_card = next(filter(None, reasons), "")
    return {**({DEVICE: of_the_card} if of_the_card else {}), **result.study.energy_unknown}


def _measured(measurement: Measurement, based_on: str) -> dict[str, Any]:
    return {"based_on": based_on, **measurement_document(measurement)}


def documents(content: bytes, place: str) -> list[dict[str, Any]]:
    """The profiles of a best.json as JSON has them. Raises ``ProfileError`` where it is none, or of another schema."""
    try:
        document = json.loads(content)
        schema, profiles = document["schema"], document["profiles"]
        if not isinstance(profiles, list) or not all(isinstance(p, dict) for p in profiles):
            raise ValueError("profiles is not a list of objects")
        if depth(profiles) > _DEEPEST:
            raise ValueError(f"nested deeper than {_DEEPEST}")
        json.dumps(profiles, allow_nan=False)  # of numbers that JSON has not none could be written again
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProfileError(
            f"{place} is not a best.json: {type(error).__name__}: {error}", hint="autotune study writes one"
        ) from error
    if schema != SCHEMA:
        raise ProfileError(
            f"{place} has schema {schema!r}, this version of autotune reads {SCHEMA}",
            hint="upgrade autotune, or run the study again",
        )
    return profiles


def same_entry(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two profiles are of the same device, number of ranks, and of devices in one process, so that one takes
    the other's place.

    One whose ``uuid`` is no more than its model's name, as a CPU's, is told by the cores as well. Profiles of earlier
    versions don't say them, and pass for any number.
    """
    device, other_device = one.get("device"), other.get("device")
    if one.get("ranks", 1) != other.get("ranks", 1) or _devices(one) != _devices(other):
        return False
    if not isinstance(device, dict) or not isinstance(other_device, dict):
        return device == other_device
    if any(device.get(name) != other_device.get(name) for name in ("kind", "uuid")):
        return False
    cores, other_cores = one.get("cores"), other.get("cores")
    return device.get("uuid") != device.get("name") or None in (cores, other_cores) or cores == other_cores


def _devices(profile: Mapping[str, Any]) -> object:
    """On how many of one process it was proven; nobody has validated it yet."""
    return _part(profile, "knowledge").get("devices", 1)


def _is_edited(profile: Mapping[str, Any]) -> bool | None:
    """None where that can't be told."""
    return profile[CHECKSUM] not in (checksum(profile), checksum(profile, int)) if CHECKSUM in profile else None


def _is_sound(profile: Mapping[str, Any]) -> bool:
    """Whether it can be read back, and wasn't edited as far as that can be told."""
    try:
        return not _profile(profile).edited
    except _MALFORMED:
        return False


def _profile(document: Mapping[str, Any]) -> Profile:
    device, script = dict(document["device"]), document["script"]
    config, verdict = document["config"], Verdict(document["verdict"])
    if not isinstance(config, dict) or not all(isinstance(v, (bool, int, float, str)) for v in config.values()):
        raise ValueError("config must map knobs to values")
    if config and verdict is not Verdict.IMPROVED:
        raise ValueError(f"its verdict is {verdict}, and its config isn't empty")
    argv, texts = script["argv"], [script["path"], script.get("module", ""), script["sha256"]]
    if not isinstance(argv, list) or not all(isinstance(text, str) for text in [*argv, *texts]):
        raise ValueError("script must be texts, and its argv a list of them")
    environment = dict(document["environment"])
    if not all(isinstance(text, str) for text in environment.values()):
        raise ValueError("environment must map names to versions")
    speedup, cores, ranks = document.get("speedup"), document.get("cores"), document.get("ranks", 1)
    if cores is not None and (type(cores) is not int or cores < 1):
        raise ValueError(f"cores is {cores!r}, not a number of cores")
    if type(ranks) is not int or ranks < 1:
        raise ValueError(f"ranks is {ranks!r}, not a number of processes")
    cannot_tell = document.get("cannot_tell", "")
    if not isinstance(cannot_tell, str):
        raise ValueError(f"cannot_tell is {cannot_tell!r:.60}, not a text")
    return Profile(
        device=Device(**device),
        config=Config(config),
        verdict=verdict,
        script=Script(script["path"], tuple(argv), script.get("module", ""), script["sha256"]),
        environment=environment,
        knowledge=_knowledge(document.get("knowledge", {})),
        speedup=float(speedup["ratio"]) if speedup else None,
        cores=cores,
        edited=_is_edited(document),
        tier3=tier3.read(document.get("tier3")),
        ranks=ranks,
        cannot_tell=cannot_tell,
        interval=read_speedup(speedup) if verdict is Verdict.IMPROVED and speedup and "low" in speedup else None,
        objective=str(document.get("objective", "")),
        limits=_part(document, "limits"),
        in_vain=knobs_in_vain(document.get("knobs")),
    )


def _knowledge(document: object) -> Knowledge:
    """Raises ``ValueError`` where it would set an option of the script that isn't a knob's."""
    knowledge = read_knowledge(document)
    for knob, destination in knowledge.options.items():
        if not is_option_of(knob, destination):
            raise ValueError(f"{knob} can't be set by the script's option {destination}: that isn't called so")
    return knowledge
