"""How figures are written for people, everywhere alike. Pure: values in, text out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from tuner.analysis.accuracy import Screened
from tuner.analysis.bottleneck import INPUT_SHARE, Bottleneck, Bound
from tuner.analysis.checks import Check, CheckKind
from tuner.analysis.course import LOSSES
from tuner.analysis.gain import is_rough
from tuner.analysis.stats import Noninferiority
from tuner.model import Device, Phase, Ratio, Rotated, Script, Shift, Side, Trial, Value, baseline_of

AS_WRITTEN = "as written"
_SKIPS_SHOWN = 0.005
"""From this share of skipped steps on a trial's result says so."""
_WAIT_SHOWN = 0.05
_BESIDE = {Phase.SEARCH: AS_WRITTEN, Phase.ANCHOR: "of the process that is kept alive"}
"""Whose rate stands beside that of a trial which took turns."""
BOUND_TEXT = {
    Bound.INPUT: "the loop waits for data",
    Bound.COMPUTE: "computing takes most of the time",
    Bound.OVERHEAD: "fixed cost per step takes most of the time",
}
SIDE_TEXT = {
    Side.COMPUTE: "computing alone",
    Side.LOADER: "the loader alone",
    Side.HALF: "computing half a batch",
}


def value_text(value: Value) -> str:
    """A knob's value as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def config_text(config: Mapping[str, Value]) -> str:
    """A config on one line; the empty one is what the script says."""
    return " ".join(f"{knob}={value_text(value)}" for knob, value in config.items()) or AS_WRITTEN


def remarks_of(trials: Iterable[Trial]) -> tuple[str, ...]:
    """What was noticed in the script as written."""
    baseline = baseline_of(trials)
    return baseline.outcome.knowledge.remarks if baseline is not None and baseline.outcome is not None else ()


def run_text(trial: Trial) -> str:
    """What was run: a config, the side of the loop that a probe ran, or what a rotation is of."""
    if trial.phase is Phase.ROTATION:
        return f"{trial.why}, by turns" if trial.why else "configs in one process, by turns"
    return SIDE_TEXT[trial.side] if trial.side is not None else config_text(trial.config)


def result_text(trial: Trial) -> str:
    """What the trial measured, or what it ended as."""
    outcome = trial.outcome
    if outcome is None:
        return "unfinished"
    measurement = outcome.measurement
    if outcome.rotation:
        return rotation_text(outcome.rotation)
    if not outcome.complete or measurement is None:
        kind = str(outcome.kind)
        return f"{kind}: {outcome.reason}" if outcome.reason else kind
    text = f"{'~' if is_rough(trial) else ''}{rate_text(measurement.rate, measurement.unit)}"
    if trial.phase in _BESIDE and measurement.reference is not None:
        text += f" beside {number_text(measurement.reference.rate)} {_BESIDE[trial.phase]}"
    if (measurement.data_wait_share or 0.0) >= _WAIT_SHOWN:
        text += f", {share_text(measurement.data_wait_share)} data wait"
    if measurement.skip_share >= _SKIPS_SHOWN:
        text += f", {share_text(measurement.skip_share)} of steps skipped"
    if measurement.compile_cache:
        text += f", {measurement.compile_cache} compile cache"
    return text if measurement.steady else f"{text}, unsteady"


def rotation_text(rotation: Sequence[Rotated]) -> str:
    """What a rotation came to: how many configs it ranked, and which first. No proof of anything."""
    gains = {each.config: each.gain for each in rotation if each.gain is not None}
    if not gains:
        return "none ranked"
    first = max(gains, key=lambda config: gains[config].ratio)
    left_out = _left_out_text(next(each for each in rotation if each.config == first))
    count = f"{len(gains)} of {len(rotation)}" if len(gains) < len(rotation) else str(len(gains))
    return f"{count} ranked, first {config_text(first)} (about {gain_text(gains[first].ratio)}{left_out}, no proof)"


def rotated_text(rotated: Rotated) -> str:
    """What a rotation said of one config."""
    name, gain = config_text(rotated.config), rotated.gain
    if gain is None:
        return f"{name}: {rotated.fault}"
    return f"{name}: {ratio_text(gain)}{_left_out_text(rotated)}"


def _left_out_text(rotated: Rotated) -> str:
    """What of a loop isn't in its ratio, so that nobody takes it for that of a trial."""
    return " without the wait for data" if rotated.without_wait else ""


def script_text(script: Script) -> str:
    """The script as it is named on the command line."""
    return f"--module {script.module}" if script.module else script.path


def device_text(device: Device) -> str:
    """The device with its name."""
    return f"{device.label} ({device.name})"


def rate_text(rate: float, unit: str = "samples") -> str:
    """A rate with three significant digits or all of its whole ones."""
    return f"{number_text(rate)} {unit}/s"


def number_text(number: float) -> str:
    """Three significant digits, or all of the whole ones with thousands apart."""
    if abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def ratio_text(ratio: Ratio) -> str:
    """A ratio with its interval."""
    return f"{gain_text(ratio.ratio)} [{_bound_text(ratio.low)}, {_bound_text(ratio.high)}]"


def interval_text(ratio: Ratio) -> str:
    """The ends of a ratio's interval, in a sentence."""
    return f"{_bound_text(ratio.low)} to {_bound_text(ratio.high)}"


def _bound_text(bound: float) -> str:
    """With so many digits, four at most, that it shows on which side of 1 it lies: there is the verdict."""
    texts = (f"{bound:.{digits}f}" for digits in (2, 3, 4))
    return next((text for text in texts if float(text) != 1), f"{bound:.2f}")


def gain_text(gain: float, *, rough: bool = False) -> str:
    """How many times as fast; ``rough``: it is only approximate."""
    return f"{'~' if rough else ''}{gain:.2f}x"


def shift_text(shift: Shift) -> str:
    """How far the baseline drifted, and which gains are approximate because of it."""
    moved = f"the baseline drifted by {shift.ratio - 1:.0%} between trials {shift.before} and {shift.after}"
    return f"{moved}: gains in between are approximate"


def count_text(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ranks_text(ranks: int, devices: int = 1) -> str:
    """What follows a device's name where several processes trained together on it, or one took it for several devices;
    "" for one of one.
    """
    told = [f", {count_text(ranks, 'rank')}"] if ranks > 1 else []
    return "".join([*told, *([f", as {devices} devices"] if devices > 1 else [])])


def bottleneck_text(bottleneck: Bottleneck) -> str:
    """The bottleneck on one line, with its figures."""
    shares = [f"{share_text(bottleneck.input_share)} of the time"] if bottleneck.bound is Bound.INPUT else []
    if bottleneck.bound is Bound.OVERHEAD and bottleneck.overhead_share is not None:
        shares.append(f"{share_text(bottleneck.overhead_share)} of a step")
    if bottleneck.most_from_input is not None:
        shares.append(f"a perfect loader would give {gain_text(bottleneck.most_from_input)} the speed")
    figures = f" ({'; '.join(shares)})" if shares else ""
    return f"{bound_text(bottleneck)}{figures}{'; ' + disturbed_text(bottleneck) if bottleneck.disturbed else ''}"


def disturbed_text(bottleneck: Bottleneck) -> str:
    """What a bottleneck's figures were disturbed by, which has to be there."""
    return f"disturbed: {bottleneck.disturbed}, so that the bottleneck may be another one"


def bound_text(bottleneck: Bottleneck) -> str:
    """The bottleneck in words, without figures."""
    unseen = bottleneck.bound is Bound.INPUT and (bottleneck.wait_share or 0.0) < INPUT_SHARE
    text = "preparing data takes time away from computing" if unseen else BOUND_TEXT[bottleneck.bound]
    return f"{bottleneck.bound}: {text}"


def budget_text(seconds: float, finals_share: float) -> str:
    """A study's budget, and the least of it that is reserved for screens and finals."""
    return f"budget {seconds_text(seconds)}, at least {seconds_text(finals_share * seconds)} for the proof"


def screened_text(screened: Screened) -> str:
    """What a screen showed, with its figures."""
    said = {"pass": "learns as well", "fail": "learns worse", "inconclusive": "not shown to learn as well"}
    if screened.by_time:
        enough = "enough from each sample for its speed"
        said = {
            "pass": f"learns {enough}", "fail": f"doesn't learn {enough}",
            "inconclusive": f"not shown to learn {enough}",
        }  # fmt: skip
    quiet = (CheckKind.WEIGHTS, Noninferiority.PASS)  # that weights move is no news
    parts = [_check_text(check) for check in screened.checks if (check.kind, check.verdict) != quiet]
    amount = f"{number_text(screened.samples)} {screened.unit}"
    seeds = count_text(screened.seeds, "seed")
    basis = f"{seeds}, {amount} each" if screened.seeds else f"no config was run; the script as written over {amount}"
    basis = f"{basis}, with no time left for more" if screened.lacked_time else basis
    decides = f"{screened.would_decide} would decide it" if screened.would_decide else ""
    return f"{said[screened.verdict]}: {'; '.join(text for text in (*parts, screened.reason, basis, decides) if text)}"


def _check_text(check: Check) -> str:
    if math.isnan(check.baseline):
        return f"{check.name} was not reported"
    if check.kind is CheckKind.COURSE and math.isinf(check.worse):
        varies = f"{check.name} differ, and as written they don't vary"
        return varies if check.name == LOSSES else "some weights stand still that move as written"
    if check.kind is CheckKind.COURSE:
        share, limit = _held_text(check.worse, check.margin, "g", 2)
        of = " of what they vary by" if check.name == LOSSES else ""
        return f"{check.name} differ by {share if check.worse < 0.1 else share_text(check.worse)}{of} (limit {limit})"
    if check.kind is CheckKind.EFFICIENCY:
        least, limit = _held_text(max(0.0, 1 - check.high), 1 - check.margin, "f", 0)
        return f"{check.name} {check.candidate:.0%} (at least {least}; limit {limit})"
    if check.kind is CheckKind.WEIGHTS:
        return f"{check.name} {1 - check.worse:.2g} times as written"
    text = f"{check.name} {check.candidate:.4g} against {check.baseline:.4g}"
    if check.kind is CheckKind.GRADIENT:
        share, limit = _held_text(check.worse, check.margin, "g", 2)
        return f"{text} ({share} apart; {limit} is the limit)"
    start = f", started at {number_text(check.start)}" if check.start is not None else ""
    if not math.isfinite(check.worse):
        return text + start
    of_way = " of the way down" if check.kind is CheckKind.LOSS else ""
    most, limit = _held_text(check.high, check.margin, "f", 2)
    # One seed bounds nothing.
    bound = f", at most {most.lstrip('-')} {_way(check.high)}" if math.isfinite(check.high) else ""
    return f"{text}{start} ({abs(check.worse):.2%} {_way(check.worse)}{bound}; limit {limit}{of_way})"


def _way(share: float) -> str:
    return "worse" if share > 0 else "better"


def _held_text(share: float, limit: float, kind: str, digits: int) -> tuple[str, str]:
    """A share and its limit in percent, with so many digits at least that one sees which is larger: there is the
    verdict. ``kind``: "f" for those behind the point, "g" for all.
    """
    both = [[f"{100 * each:.{digits + more}{kind}}%" for each in (share, limit)] for more in range(4)]
    one, other = next((texts for texts in both if texts[0] != texts[1]), both[0])
    return one, other


def share_text(share: float | None) -> str:
    """A share in percent; none is told from a small one."""
    if share is None:
        return "unknown"
    text = f"{share:.0%}"
    return "<1%" if share > 0 and text == "0%" else text


def bytes_text(amount: float) -> str:
    """An amount of memory in the largest unit that fits."""
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def above_text(amount: float, most: float) -> str:
    """An amount of memory and the limit below it, each with so many digits that one sees which is larger."""
    both = bytes_text(amount), bytes_text(most)
    power = min(3, max(0, math.floor(math.log(max(most, 1.0), 1024))))
    unit = ("B", "KiB", "MiB", "GiB")[power]
    for digits in range(1, 10):
        if both[0] != both[1]:
            break
        both = f"{amount / 1024**power:.{digits}f} {unit}", f"{most / 1024**power:.{digits}f} {unit}"
    return f"{both[0]}, of {both[1]} allowed"


def seconds_text(seconds: float) -> str:
    """A duration in at most two units."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s" if whole % 60 else f"{whole // 60} min"
    minutes = round(whole / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes % 60 else f"{minutes // 60} h"
