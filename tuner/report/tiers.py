"""What a summary says of the tiers: the best config of each, and the larger batches of the third."""

from __future__ import annotations

from tuner.analysis.tiers import BY_TIME
from tuner.formatting import config_text, gain_text, interval_text
from tuner.knowledge import batch_factor
from tuner.report.table import aligned
from tuner.result import StudyResult

KEEP = "keep your config"
"""The answer where nothing is proven to be faster."""
_NAMES = {1: "speed only", 2: "numerics", 3: "optimisation"}
_LEARNED = {
    "not-needed": "", "pass": "learns as well", BY_TIME: "learns enough for its speed", "fail": "learns worse",
    "inconclusive": "not shown to learn as well", "not-screened": "learning not compared",
}  # fmt: skip


def beside_larger(answer: str) -> str:
    """A study's answer that is no proven gain, such as ``KEEP``, where a larger batch is proven."""
    told = answer.replace(KEEP, f"{KEEP}, or take larger batches (tier 3)", 1)
    return told if told != answer else f"{answer}; larger batches (tier 3) are proven to reach a loss sooner"


def larger_batches(result: StudyResult) -> list[str]:
    """The larger effective batch beside the winner: how much sooner it reaches a loss, or why that isn't known."""
    title = "larger batches (tier 3, changes the optimisation), judged by how soon they reach a loss"
    larger = result.larger
    if larger is None:
        return [title, f"  not known: {result.no_larger}"] if result.no_larger else []
    config, winner = config_text(larger.config), larger.winner
    if winner is None or larger.sooner is None:
        single = f"{gain_text(larger.gain, rough=larger.config in result.rough_gains)} the speed in a single trial"
        learns = f", learns as from {1 / larger.efficiency.ratio:.2f}x the samples" if larger.efficiency else ""
        return [title, f"  {config}: {single}{learns}; not proven: {larger.why}"]
    sooner, speed = larger.sooner, winner.speedup
    reaches = "reaches the same loss" if larger.proven else f"not proven: {larger.why}; measured:"
    reaches = f"{reaches} {gain_text(sooner.ratio)} as fast, 95% interval {interval_text(sooner)}"
    lines = [title, f"  {config}: {reaches}"]
    if larger.efficiency is not None:
        needs = f"needs {1 / larger.efficiency.ratio:.2f}x the samples, by its screen"
        runs = f"{winner.runs} runs of each in fresh processes"
        lines.append(f"  {gain_text(speed.ratio)} the speed, 95% interval {interval_text(speed)}, from {runs}; {needs}")
    if larger.proven:
        factor = batch_factor(larger.config, result.knowledge)
        steps = 1 / factor / (larger.efficiency.ratio if larger.efficiency is not None else 1.0)
        fewer = f"a script that trains for so many steps, not epochs, needs {steps:.2g} times as many for the same loss"
        lines.append(f"  each step trains on {factor:g} times the samples: {fewer}")
    return lines


def best_of_each(result: StudyResult) -> list[str]:
    """A row a tier, where there are several: whoever won't have other numerics sees what is left."""
    if len(result.bests) < 2:
        return []
    rows, larger = [], result.larger
    for best in result.bests:
        if best.speedup is not None:
            said = f"{gain_text(best.speedup.ratio)} in the finals, {'proven' if best.proven else 'not proven'}"
        else:
            gain = gain_text(best.gain, rough=best.config in result.rough_gains)
            said = f"{gain} in a single trial, not proven"
        learned = _LEARNED[best.learned]
        if larger is not None and best.config == larger.config:
            if larger.winner is not None:
                learned = "" if larger.proven else "not shown to reach a loss sooner"
            if larger.sooner is not None and larger.proven:
                said = f"reaches a loss {gain_text(larger.sooner.ratio)} as fast, proven"
        rows.append((f"  {best.tier} {_NAMES[best.tier]}", config_text(best.config), said, learned))
    return ["best of each tier", *aligned(rows)]
