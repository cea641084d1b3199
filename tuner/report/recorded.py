"""What was recorded of a script's configs, as lines for people."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.formatting import bytes_text, config_text, count_text, gain_text, result_text, run_text, seconds_text
from tuner.model import Config, Trial


def trial_line(trial: Trial, gain: float | None) -> str:
    """A trial that has just ended."""
    seconds = trial.outcome.seconds if trial.outcome is not None else 0.0
    figure = f"{gain_text(gain)}  " if gain is not None and trial.config else ""
    return f"{trial.number:>4}  {run_text(trial)}: {figure}{result_text(trial)} ({seconds_text(seconds)})"


def recorded_lines(
    place: str,
    *,
    size: int,
    seconds: float,
    found: int,
    wanted: int,
    ended_as: Mapping[str, int],
    best: tuple[Config, float],
    ranks: int = 1,
) -> list[str]:
    """What the file at ``place``, of ``size`` bytes, holds: ``found`` of ``wanted`` configs, which took ``seconds``.

    ``ended_as``: how many of them failed, by what they ended as. ``best``: the fastest one and its gain. ``ranks``: so
    many processes trained together in each trial.
    """
    config, gain = best
    together = f" in {ranks} ranks" if ranks > 1 else ""
    lines = [
        f"{place}: {found} of {count_text(wanted, 'config')}{together}, {bytes_text(size)}, recorded in"
        f" {seconds_text(seconds)}",
        f"fastest of single short trials, no proof: {config_text(config)} ({gain_text(gain)})",
    ]
    if ended_as:
        lines.append("failed: " + ", ".join(f"{count} {name}" for name, count in sorted(ended_as.items())))
    if found < wanted:
        lines.append("incomplete: the same command goes on")
    return lines
