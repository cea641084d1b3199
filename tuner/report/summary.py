"""The closing summary of a study: what was proven, by how much, and what to do with it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from tuner.analysis.accuracy import Screened
from tuner.analysis.comparison import with_effect
from tuner.analysis.learning import LATER, time_to_loss
from tuner.analysis.stats import Noninferiority
from tuner.analysis.tiers import Tiers, holds, rejected_part
from tuner.formatting import (
    bottleneck_text,
    bytes_text,
    config_text,
    count_text,
    gain_text,
    interval_text,
    number_text,
    remarks_of,
    run_text,
    screened_text,
    seconds_text,
    share_text,
    shift_text,
    value_text,
)
from tuner.masking import masked
from tuner.model import (
    BASELINE,
    Config,
    Evidence,
    KnobReport,
    LeftOut,
    Measurement,
    OutcomeKind,
    Phase,
    Trial,
    Verdict,
    Winner,
    baseline_of,
)  # fmt: skip
from tuner.objective import Objective
from tuner.report.table import aligned
from tuner.report.tiers import KEEP, beside_larger, best_of_each, larger_batches
from tuner.result import StudyFacts, StudyResult

_EXAMPLES = 3
_WORTH_MENTIONING_S = 1.0
_NEAR = 1.005
_A_PART = 0.1
_FIRST_STEPS = "its slower first steps"
_LEAST_TOLD = 1e-3
"""Of the time: a mere call of ``eval()`` interrupts the training, too."""
_TIERS = {2: "changes the numerics", 3: "changes the optimisation"}


def summary(result: StudyResult, files: Mapping[str, str], profile: str) -> str:
    """The summary as plain text, ending in a newline.

    ``files`` are those that were written, name → path; ``profile`` is the one that can be applied, "" without one.
    """
    winner = result.winner
    parts = [_verdict(result)]
    if result.larger is not None and result.larger.proven and not result.improved:
        parts[0][0] = beside_larger(parts[0][0])
    if result.bottleneck is not None:
        parts[0].append(f"as written it is {bottleneck_text(result.bottleneck)}")
    if result.validation_share is not None and result.validation_share >= _LEAST_TOLD:
        validation = share_text(result.validation_share)
        parts[0].append(f"validation takes {validation} of its time, and is no part of the rates")
    parts.append(larger_batches(result))
    parts += [_fault(result), _remarks(remarks_of(result.trials))]
    if winner is not None:
        parts.append(_comparison(winner, "winner" if result.improved else "best candidate", result.objective))
    if winner is not None and result.improved:
        parts.append(_evidence(winner))
        parts.append(_cautions(winner, Tiers(result.tiers, result.knowledge), result.screened))
    parts.append(best_of_each(result))
    parts += [_accuracy(result.screened), [shift_text(shift) for shift in result.shifts]]
    parts += [_left_out(result.left_out), _failures(result.trials), _cut_short(result.trials)]
    parts.append(_next(result, files, profile))
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _verdict(result: StudyResult) -> list[str]:
    ended = f"{count_text(len(result.trials), 'trial')} in {seconds_text(result.seconds)}; {result.why or 'done'}"
    ranked = {each.config for trial in result.trials if trial.outcome for each in trial.outcome.rotation if each.gain}
    if ranked:
        ended = f"{ended}; {count_text(len(ranked), 'config')} ranked in one process"
    winner = result.winner
    if winner is None:
        return [*_unproven(result), ended]
    if winner.verdict is Verdict.IMPROVED:
        proof = [_proof(winner, result.objective), *_killed(result, winner), *_sooner(winner, result)]
        proof += _late(winner, result)
        return [f"{_more(result.objective)}: {config_text(winner.config)}", *proof, ended]
    tried = "nothing that keeps the effective batch" if result.larger and result.larger.proven else "nothing tried"
    nothing = f"{tried} was proven {_more(result.objective)}"
    faster = "what is faster reaches a loss later" if winner.label == LATER else nothing
    lines = [f"can't tell: {result.left_open}" if result.left_open else f"{KEEP}: {faster}"]
    if winner.config:
        late = _late(winner, result)
        was = "the best candidate that had time for finals was" if late else "the best candidate was"
        lines += [f"{was} {config_text(winner.config)}", _proof(winner, result.objective)]
        lines += [*_sooner(winner, result), *late]
    return [*lines, ended]


def _late(winner: Winner, result: StudyResult) -> list[str]:
    """What is expected to be better than what the finals judged, and had no time for them."""
    late = result.lacked_time
    if late is None or late.config == winner.config:
        return []
    gain = gain_text(late.gain, rough=late.config in result.rough_gains)
    single = f"{gain} {result.objective.gains_of} in a single trial"
    return [f"no time was left to prove {config_text(late.config)}: {single}"]


def _proof(winner: Winner, objective: Objective) -> str:
    ratio = winner.speedup
    label = f" ({winner.label})" if winner.label else ""
    how = "runs of each by turns," if winner.winner.turns else "interleaved runs of each"
    runs = f"{winner.runs} {how} in fresh processes{label}"
    gain = f"{gain_text(ratio.ratio)} {objective.gains_of}"
    return f"{gain}, 95% interval {interval_text(ratio)}, from {runs}"


def _killed(result: StudyResult, winner: Winner) -> list[str]:
    """That runs of it in the finals were killed from outside and run again: it may be so in production."""
    runs = [t.outcome for t in result.trials if t.phase is Phase.FINALS and t.config == winner.config and t.outcome]
    killed = sum(bool(outcome.again_after) for outcome in runs)
    return [f"killed from outside in {killed} of its {count_text(len(runs), 'run')} in the finals"] if killed else []


def _more(objective: Objective) -> str:
    return "faster" if objective.is_rate else "better"


def _sooner(winner: Winner, result: StudyResult) -> list[str]:
    """How much sooner a loss is reached: more samples a second, of which more or fewer may be needed."""
    for screen in result.screened if result.objective.is_rate else ():
        if screen.config == winner.config and screen.efficiency is not None:
            sooner, needed = time_to_loss(winner.speedup, screen.efficiency), 1 / screen.efficiency.ratio
            interval = f"95% interval {interval_text(sooner)}"
            why = f"needs {needed:.2f}x the samples"
            return [f"reaches the same loss {gain_text(sooner.ratio)} as fast, {interval}: {why}"]
    return []


def _unproven(result: StudyResult) -> list[str]:
    """Without finals nothing is proven, whatever one trial showed."""
    best, baseline = result.best, baseline_of(result.trials)
    kept = " that keeps the effective batch" if result.larger is not None else ""
    if baseline is None or not _rate(baseline):
        return ["no result yet: the script as written was not measured to the end"]
    if best is None or not best.config:
        searched = any(
            trial.phase is Phase.SEARCH and trial.outcome is not None and trial.outcome.complete
            for trial in result.trials
        )  # fmt: skip
        if not searched:
            return ["no result: nothing but the script as written was measured"]
        tried, untold = f"no trial{kept} was {_more(result.objective)} than the script as written", result.left_open
        return [f"can't tell: {untold}; {tried}" if untold else f"{KEEP}: {tried}"]
    ratio = result.best_gain if result.best_gain is not None else _rate(best) / _rate(baseline)
    gain = gain_text(ratio, rough=best.config in result.rough_gains)
    lines = [
        f"not proven: {_lacked(result, best)}",
        f"the fastest single trial{kept} was {config_text(best.config)}: {gain} the speed of the script as written"
        if result.objective.is_rate and result.objective.planned_samples is None
        else f"the best single trial{kept} was {config_text(best.config)}: {gain} {result.objective.gains_of}",
    ]
    return [*lines, f"that is no more than a hint: {result.roughness}"] if result.roughness else lines


def _lacked(result: StudyResult, best: Trial) -> str:
    """What the fastest trial lacked for a proof: by what was run of its own config, or of that without vain knobs."""
    own = {best.config, with_effect(best)}
    screens = [screen for screen in result.screened if screen.config in own]
    is_due = Tiers(result.tiers, result.knowledge).of(best.config) > 1
    if not screens and is_due:
        # One without seeds tells of the script as written: it stands for all.
        screens = [screen for screen in result.screened if not screen.seeds]
    finals = [trial for trial in result.trials if trial.phase is Phase.FINALS]
    failed = [trial.config for trial in finals if trial.outcome and not trial.outcome.complete]
    others = [config for config in failed if config and config not in own]
    if any(screen.lacked_time for screen in screens):
        return "no time left to compare how it learns, and to prove it"
    if any(not screen.seeds for screen in screens) or (not screens and is_due and result.untellable):
        return "a screen can't tell how it learns, since the script as written shows too little"
    if any(screen.verdict is not Noninferiority.PASS for screen in screens):
        return "it was not shown to learn as well as the script as written"
    if own.intersection(failed):
        return "it failed in the finals"
    if not screens and (alike := _rejected_alike(result, best.config)) is not None:
        return f"what it changes beside speed {alike}"
    if result.interrupted:
        return f"the study ended before the finals {'finished' if finals else 'began'}"
    if others:
        return f"{config_text(others[0])} came before it, and failed in the finals"
    if BASELINE in failed:
        return "the script as written failed in the finals"
    return "no time left to prove it"


def _rejected_alike(result: StudyResult, config: Config) -> str | None:
    """What became of another config in its screen of which this one has all that changes more than speed, where more
    than time was lacking there.
    """
    tiers = Tiers(result.tiers, result.knowledge)
    screens = [one for one in result.screened if one.config != config and not one.by_time and one.seeds]
    alike = [one for one in screens if holds(config, rejected_part(one, tiers))]
    failed = next((one for one in alike if one.verdict is Noninferiority.FAIL), None)
    if failed is not None:
        return f"failed the screen of {config_text(failed.config)}"
    is_open = next((one for one in alike if one.verdict is Noninferiority.INCONCLUSIVE and not one.lacked_time), None)
    if is_open is None or result.lacked_time is not None:
        return None
    return f"was not shown to learn as well in the screen of {config_text(is_open.config)}"


def _fault(result: StudyResult) -> list[str]:
    """That autotune broke the script, and what that took from the study."""
    if not result.broke_it:
        return []
    return [
        "a fault of autotune: it broke this script, which is in order",
        f"  studied without what broke it: {', '.join(result.broke_it)}",
        "  the knobs that this cost are among those left out",
        f"  please report it, with {result.fault}",
    ]


def _remarks(remarks: Sequence[str]) -> list[str]:
    return ["remarks on the script as written", *(f"  {remark}" for remark in remarks)] if remarks else []


def _comparison(winner: Winner, title: str, objective: Objective) -> list[str]:
    before, after = winner.baseline, winner.winner
    rows = [
        ("", "as written", title),
        (f"{before.unit}/s", number_text(before.rate), number_text(after.rate)),
        ("data wait", share_text(before.data_wait_share), share_text(after.data_wait_share)),
        ("host memory", bytes_text(before.peak_host_bytes), bytes_text(after.peak_host_bytes)),
    ]
    if before.tokens_per_s is not None and after.tokens_per_s is not None:
        rows.insert(2, ("tokens/s", number_text(before.tokens_per_s), number_text(after.tokens_per_s)))
    if before.peak_device_bytes and after.peak_device_bytes:
        rows.append(("device memory", bytes_text(before.peak_device_bytes), bytes_text(after.peak_device_bytes)))
    rows.append(("time to first step", _start(before), _start(after)))
    return [*aligned(rows), *_apart(winner, objective), *_break_even(before, after)]


def _apart(winner: Winner, objective: Objective) -> list[str]:
    """That the rates' own ratio is above the one that is told, where only lucky rounds prove a gain so small."""
    if not objective.is_rate or objective.planned_samples is not None or winner.baseline.rate <= 0:
        return []
    ratio = winner.winner.rate / winner.baseline.rate
    if ratio <= _NEAR * winner.speedup.ratio:
        return []
    why = "since luck, or a queue that was full before, may be part of it"
    return [f"these rates are {gain_text(ratio)} apart: less is told above, {why}"]


def _break_even(before: Measurement, after: Measurement) -> list[str]:
    """What is paid once, to compile or to fill a cache, is paid back by a higher rate, after so many samples."""
    extra_s = after.paid_once_s - before.paid_once_s
    if extra_s < _WORTH_MENTIONING_S or after.rate <= before.rate:
        return []
    samples = extra_s / (1 / before.rate - 1 / after.rate)
    seconds = samples / after.rate + after.paid_once_s
    return [f"{_paid_once(before, after)} off after {number_text(samples)} {before.unit} ({seconds_text(seconds)})"]


def _paid_once(before: Measurement, after: Measurement) -> str:
    """What it is that pays, or pay, off: whatever takes a good part of the seconds that are paid once."""
    extra_s, parts = after.paid_once_s - before.paid_once_s, []
    if after.start_s - before.start_s > _A_PART * extra_s:
        parts.append("its slower start" + (" (nothing compiled yet)" if after.cold_first_step_s is not None else ""))
    if (after.warmup_extra_s or 0.0) - (before.warmup_extra_s or 0.0) > _A_PART * extra_s:
        filled = any(r.knob == "cache" and r.requested and r.evidence is Evidence.VERIFIED for r in after.knobs)
        parts.append("the filling of its cache" if filled else _FIRST_STEPS)
    return f"{' and '.join(parts)} {'pays' if len(parts) == 1 and parts[0] != _FIRST_STEPS else 'pay'}"


def _start(measurement: Measurement) -> str:
    """Seconds to the first step, and what the compiler's cache had to do with it."""
    cache = f"{measurement.compile_cache} compile cache" if measurement.compile_cache else ""
    if measurement.cold_first_step_s is not None:
        cache = f"cold compile cache; {measurement.compile_cache}: {seconds_text(measurement.first_step_s)}"
    return seconds_text(measurement.start_s) + (f" ({cache})" if cache else "")


def _evidence(winner: Winner) -> list[str]:
    reports = {report.knob: report for report in winner.winner.knobs}
    rows = []
    for knob, value in winner.config.items():
        report = reports.get(knob)
        rows.append((f"  {knob}={value_text(value)}", _seen(report) if report else "not observed"))
    return ["observed effect of its knobs", *aligned(rows)]


def _seen(report: KnobReport) -> str:
    text = str(report.evidence)
    if report.sites_seen > 1:
        text += f" ({report.sites_changed} of {report.sites_seen} call sites)"
    return f"{text}: {report.reason}" if report.reason else text


def _accuracy(screened: Sequence[Screened]) -> list[str]:
    """How the candidates that change more than speed learned."""
    if not screened:
        return []
    rows = [(f"  {config_text(screen.config)}", screened_text(screen)) for screen in screened]
    return ["learning, compared with the script as written on the same seeds", *aligned(rows)]


def _cautions(winner: Winner, tiers: Tiers, screened: Sequence[Screened]) -> list[str]:
    """What nobody has compared: knobs that change more than speed, without a screen."""
    if any(screen.config == winner.config for screen in screened):
        return []
    lines = []
    for tier, effect in _TIERS.items():
        knobs = [knob for knob in winner.config if tiers.of_knob(knob, winner.config) == tier]
        if knobs:
            lines.append(f"{', '.join(knobs)} {effect}: compare a full training run before relying on it")
    return lines


def _left_out(left_out: Mapping[str, LeftOut]) -> list[str]:
    """Why knobs weren't searched; that the user chose others is no news to him."""
    rows = [(f"  {knob}", left.reason) for knob, left in left_out.items() if not left.unselected]
    return ["knobs left out", *aligned(rows)] if rows else []


def _failures(trials: Sequence[Trial]) -> list[str]:
    """The trials without a measurement, by reason, with a few of their configs."""
    groups: dict[str, list[str]] = {}
    for trial in trials:
        outcome = trial.outcome
        if outcome is not None and not outcome.complete and outcome.kind is not OutcomeKind.UNFINISHED:
            kind = "" if outcome.kind is OutcomeKind.INFEASIBLE else str(outcome.kind)
            name = ": ".join(dict.fromkeys(part for part in (kind, outcome.reason) if part))
            groups.setdefault(name or str(outcome.kind), []).append(run_text(trial))
    if not groups:
        return []
    most_first = sorted(groups.items(), key=lambda group: -len(group[1]))
    rows = [(f"  {len(runs)} {name}", _examples(runs)) for name, runs in most_first]
    failed = sum(len(runs) for runs in groups.values())
    return [f"{failed} of {count_text(len(trials), 'trial')} failed", *aligned(rows)]


def _examples(runs: Sequence[str]) -> str:
    more = f"; {len(runs) - _EXAMPLES} more" if len(runs) > _EXAMPLES else ""
    return "; ".join(runs[:_EXAMPLES]) + more


def _cut_short(trials: Sequence[Trial]) -> list[str]:
    """The trials that say nothing of their configs, since the study's time was up."""
    runs = [run_text(t) for t in trials if t.outcome is not None and t.outcome.kind is OutcomeKind.UNFINISHED]
    count = count_text(len(trials), "trial")
    return [f"{len(runs)} of {count} had no time to be measured", f"  {_examples(runs)}"] if runs else []


def _next(result: StudyResult, files: Mapping[str, str], profile: str) -> list[str]:
    rows = list(files.items())
    if result.improved and profile:
        rows.append(("apply", run_command(result.study, profile)))
    if result.larger is not None and result.larger.proven and profile:
        rows.append(("apply tier 3", run_command(result.study, profile, "--tier", "3")))
    rows.append(("trials", shlex.join(["autotune", "trials", result.study.folder])))
    if result.interrupted:
        rows.append(("resume", "run the same command again"))
    elif result.lacked_time is not None:
        late = result.lacked_time
        proves = f"which has the time to prove {config_text(late.first)}"
        rows.append(("go on", f"the same command with --budget {late.budget_s / 60:.0f}m, {proves}"))
    elif result.untried_budget_s is not None:
        rows.append(("go on", f"the same command with --budget {result.untried_budget_s / 60:.0f}m, to try a config"))
    return aligned(rows)


def run_command(study: StudyFacts, profile: str, *options: str) -> str:
    """The command that applies a profile; it is printed, and so without the secrets among the arguments."""
    script, ranks = study.script, str(study.ranks)
    launcher = ["torchrun", "--nproc-per-node", ranks, "--no-python"] if study.ranks > 1 else []
    target = ["--module", script.module] if script.module else [script.path]
    arguments = ["--", *masked(script.argv)] if script.argv else []
    return shlex.join([*launcher, "autotune", "run", "--config", profile, *options, *target, *arguments])


def _rate(trial: Trial) -> float:
    measurement = trial.outcome.measurement if trial.outcome is not None else None
    return measurement.rate if measurement is not None else 0.0
