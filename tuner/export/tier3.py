"""The object ``tier3`` of a profile in best.json: the larger effective batch beside the winner. See README.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tuner.documents import knob_document, measurement_document, plain, screen_document
from tuner.errors import ProfileError
from tuner.formatting import config_text
from tuner.model import Config, Ratio, Verdict
from tuner.result import StudyResult


@dataclass(frozen=True)
class Tier3:
    """It read back. ``sooner`` is how many times sooner it reaches a loss, by the estimate; None where unknown. ``why``
    says for people why it isn't proven, "" where it is, or nobody says.
    """

    config: Config
    verdict: Verdict
    sooner: float | None
    why: str = ""


def document_of(result: StudyResult) -> dict[str, Any] | None:
    """The object; None where no larger effective batch was measured."""
    larger = result.larger
    if larger is None:
        return None
    winner = larger.winner
    winners = [winner] if winner is not None else []
    screens = [screen_document(one, winners) for one in result.screened if one.config == larger.config]
    return {
        "config": dict(larger.config),
        "verdict": str(Verdict.IMPROVED if larger.proven else Verdict.KEEP_BASELINE),
        "single_trial_gain": larger.gain,
        "speedup": _ratio(winner.speedup) if winner is not None else None,
        "runs": winner.runs if winner is not None else 0,
        "sample_efficiency": _ratio(larger.efficiency),
        "time_to_loss": _ratio(larger.sooner),
        "reason": larger.why,
        "accuracy": {"tier": 3, **(screens[-1] if screens else {"verdict": "not-screened"})},
        "knobs": [knob_document(report) for report in winner.winner.knobs] if winner is not None else [],
        "measurement": measurement_document(winner.winner) if winner is not None else None,
    }


def read(document: object) -> Tier3 | None:
    """The object read back; None where there is none, as in earlier versions. Raises ``ValueError`` or ``KeyError``."""
    if document is None:
        return None
    if not isinstance(document, Mapping):
        raise ValueError(f"tier3 is {document!r:.60}, not an object")
    config, verdict = document["config"], Verdict(document["verdict"])
    if not isinstance(config, dict) or not all(isinstance(v, (bool, int, float, str)) for v in config.values()):
        raise ValueError("tier3: config must map knobs to values")
    if not config:
        raise ValueError("tier3: its config is empty")
    sooner, why = document.get("time_to_loss"), document.get("reason", "")
    if not isinstance(why, str):
        raise ValueError(f"tier3: its reason is {why!r:.60}, not a text")
    return Tier3(Config(config), verdict, float(sooner["ratio"]) if sooner else None, why)


def proven_in(document: object) -> Config | None:
    """The config that such an object holds a proof of; None where it holds none, or nobody can read it."""
    try:
        tier3 = read(document)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return tier3.config if tier3 is not None and tier3.verdict is Verdict.IMPROVED else None


def proven(tier3: Tier3 | None, device: str, place: str) -> Tier3:
    """The same one. Raises ``ProfileError`` where there is none, or no proof of it."""
    if tier3 is not None and tier3.verdict is Verdict.IMPROVED:
        return tier3
    without = "leave out --tier 3 for what keeps the effective batch"
    if tier3 is None:
        raise ProfileError(
            f"{place} holds no larger effective batch (tier 3) for {device}",
            hint=f"{without}; a study tries larger ones, unless --effective-batch keep or free says otherwise",
        )
    raise ProfileError(
        f"{place} holds no proof of a larger effective batch (tier 3) for {device}: the best was"
        f" {config_text(tier3.config)}{f'; {tier3.why}' if tier3.why else ''}",
        hint=without,
    )


def _ratio(ratio: Ratio | None) -> Any:
    return plain(asdict(ratio)) if ratio is not None else None
