"""From settings to the plan of a study: everything is held against the machine, and nothing is created."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from tuner.analysis.accuracy import AccuracyLimits
from tuner.cli.quantities import parse_bytes
from tuner.cli.script import find_script, refuse_many_ranks, source_of, stem
from tuner.cli.settings import DEFAULTS, Settings
from tuner.devices.abilities import energy_unknown
from tuner.devices.host import host_memory, spare_cores, usable_cores
from tuner.devices.present import kind_of, resolve_device
from tuner.devices.software import keras_backend, software
from tuner.errors import StorageError, UsageError
from tuner.formatting import budget_text, bytes_text, config_text, device_text, script_text, seconds_text
from tuner.knowledge import BOTH, FREE, KEEP
from tuner.masking import masked
from tuner.model import Device, baseline_of
from tuner.objective import amortised
from tuner.runner.request import Limits
from tuner.space.arguments import parse
from tuner.space.choose import Spaces
from tuner.space.registry import AUTO, load_objective, load_spaces
from tuner.storage.folder import DATABASE
from tuner.storage.lock import FolderLock, already_running
from tuner.storage.studies import NothingStoredError, read_study
from tuner.study.budget import FINALS_SHARE
from tuner.study.identity import check_identity, check_modules, identity_of
from tuner.study.plan import StudyPlan

_BATCH_TEXT = {
    BOTH: "kept, and larger ones tried beside that", KEEP: "kept, and no other one tried", FREE: "free to be searched",
}  # fmt: skip


def _check_encoded(words: Iterable[str]) -> None:
    """Raises ``UsageError`` for a path or an argument whose bytes aren't text here: nothing could keep it."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{word!a} can't be kept: its bytes are no {sys.getfilesystemencoding()}",
                hint="rename the file, or link to it by another name",
            ) from None


def make_plan(settings: Settings) -> StudyPlan:
    """The plan. Raises the error of whatever can't be: script, device, space, objective, knob, limit."""
    refuse_many_ranks()
    cores = usable_cores()
    script = find_script(settings.script, settings.module, settings.args)
    _check_encoded([script.path, *script.argv, settings.folder or ""])
    device = resolve_device(settings.device)
    _check_ranks(settings, device, cores)
    spaces = Spaces(load_spaces(settings.space), forced=settings.space != AUTO)
    objective = load_objective(settings.objective)
    if settings.planned_samples is not None:
        objective = amortised(objective, settings.planned_samples)
    spaces.check(parse(script.argv), settings.knobs, settings.pinned)
    total, _ = host_memory()
    kind = kind_of(device)
    if not (kind.is_host or kind.own_memory) and settings.max_memory != DEFAULTS["max_memory"]:
        raise UsageError(
            f"--max-memory {settings.max_memory}: nothing tells how much of its memory a {kind.name} has or uses",
            hint="leave it out",
        )
    of_device = parse_bytes(settings.max_memory, device.memory_bytes or total)
    max_host_bytes, max_device_bytes = kind.memory_limits(of_device, total)
    together = f"-{settings.ranks}-ranks" if settings.ranks > 1 else ""
    name = f"{stem(script)}-{device.label.replace(':', '')}{together}"
    return StudyPlan(
        name=name,
        script=script,
        source=source_of(script),
        device=device,
        folder=Path(settings.folder or f"autotune-{name}"),
        spaces=spaces,
        objective=objective,
        selection=settings.knobs,
        pinned=settings.pinned,
        trials=settings.trials,
        budget_s=settings.budget_s,
        limits=Limits(
            trial_timeout_s=settings.trial_timeout_s,
            no_progress_s=min(max(Limits.no_progress_s, settings.trial_timeout_s / 4), settings.trial_timeout_s),
            max_host_bytes=max_host_bytes,
            max_device_bytes=max_device_bytes,
        ),
        seed=settings.seed,
        cores=cores,
        spare_cores=spare_cores(),
        software=software(),
        keras_backend=keras_backend(),
        energy_unknown=energy_unknown(device),
        effective_batch=settings.effective_batch,
        probe=settings.probe,
        ranks=settings.ranks,
        without=settings.without,
        accuracy=settings.accuracy,
    )


def _check_ranks(settings: Settings, device: Device, cores: int) -> None:
    """Raises ``UsageError`` where so many ranks can't be studied."""
    if settings.ranks > 1 and not kind_of(device).is_host:
        raise UsageError(
            f"--ranks {settings.ranks}: several ranks are studied on the CPU only, and this is {device.label}",
            hint="study one rank on one card: leave out --ranks; or --device cpu",
        )
    if settings.ranks > cores:
        raise UsageError(
            f"--ranks {settings.ranks}: there are fewer cores ({cores}), and each rank needs one",
            hint=f"--ranks {cores}",
        )


def described(plan: StudyPlan, settings: Settings, *, anew: bool) -> list[str]:
    """What the study would be, a line a choice; ``anew`` sets an earlier one aside."""
    on_device = plan.limits.max_device_bytes
    rows = [
        ("script", script_text(plan.script)),
        ("arguments", shlex.join(masked(plan.script.argv))),
        ("device", device_text(plan.device)),
        ("ranks", str(plan.ranks) if plan.ranks > 1 else ""),
        ("folder", f"{plan.folder} ({_begins(plan.folder, anew=anew)})"),
        ("bounds", f"{plan.trials} trials before the finals; {budget_text(plan.budget_s or 0, FINALS_SHARE)}"),
        ("starts with", "a probe" if plan.probe else ""),
        ("trial time", f"at most {seconds_text(plan.limits.trial_timeout_s)}"),
        ("host memory", f"at most {bytes_text(plan.limits.max_host_bytes or 0)}"),
        ("device memory", f"at most {bytes_text(on_device)}" if on_device else ""),
        *_space_rows(plan.spaces, plan.device.kind, plan.ranks),
        ("selected", ", ".join(plan.selection)),
        ("pinned", config_text(plan.pinned) if plan.pinned else ""),
        ("effective batch", _BATCH_TEXT[plan.effective_batch]),
        ("without", ", ".join(sorted(plan.without))),
        ("accuracy", _accuracy_text(plan.accuracy)),
        ("objective", f"{plan.objective.name} ({plan.objective.unit})"),
        ("settings from", str(settings.source or "")),
    ]
    return [f"{name:<16}{value}" for name, value in rows if value]


def _begins(folder: Path, *, anew: bool) -> str:
    if not (folder / DATABASE).exists():
        return "new"
    return f"new; the earlier study is set aside as {_free_name(folder)}" if anew else "resumes"


def check_resumable(plan: StudyPlan) -> None:
    """Raises the error that the study would, before a trial: where its folder holds one of something else, one that
    runs, or none that can be read and written. A search space that has become another one is found later.
    """
    database = plan.folder / DATABASE
    if not database.exists():
        return
    if not os.access(database, os.W_OK):
        hint = "make the study's folder and its files writable, or choose another folder with --study DIR"
        raise StorageError(f"can't write to {database}", hint=hint)
    try:
        stored, folder = read_study(plan.folder), str(plan.folder)
    except NothingStoredError:
        return
    if stored.state == "running":
        raise already_running(plan.folder)
    baseline = baseline_of(stored.trials)
    if stored.holds_results:
        check_identity(stored.record.identity, identity_of(plan), folder, baseline)
    if baseline is not None and baseline.outcome is not None and plan.source is not None:
        check_modules(baseline.outcome.knowledge.module_hashes, plan.source, folder)


def _space_rows(spaces: Spaces, kind: str, ranks: int) -> list[tuple[str, str]]:
    """The space, or each of those that the script's framework will choose from, with the knobs that exist there."""
    rows = []
    for space in spaces.declared:
        chosen_by = "" if spaces.forced else f" (if the script trains with {space.framework})"
        there = [knob.name for knob in space.knobs if knob.is_on(kind) and (ranks > 1 or not knob.for_ranks)]
        rows.append(("search space", f"{space.name}{chosen_by}: {', '.join(there)}"))
    return rows


def _accuracy_text(limits: AccuracyLimits) -> str:
    parts = []
    if limits.max_loss_increase is not None:
        parts.append(f"of the way that the training loss comes down at most {limits.max_loss_increase:.2%} lost")
    if limits.least_efficiency is not None:
        parts.append(f"as much learnt as from {limits.least_efficiency:.0%} of the samples at least")
    parts += [f"{name} at most {drop:.2%} lower" for name, drop in limits.max_metric_drop.items()]
    parts += [f"{name} at most {rise:.2%} higher" for name, rise in limits.max_metric_rise.items()]
    return ", ".join(parts) or "not screened"


def check_writable(folder: Path) -> None:
    """Raises ``StorageError`` where the study's folder can't be made or written, and makes nothing."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise StorageError(f"{existing} is not a folder", hint="choose another one with --study DIR")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise StorageError(f"can't write to {existing}", hint="choose another folder with --study DIR")


def check_movable(folder: Path, source: Path | None) -> None:
    """Raises ``StorageError`` where an earlier study's folder can't make way: the current folder would go with it, or
    ``source``, the script.
    """
    if not (folder / DATABASE).exists():
        return
    moved = folder.resolve()
    if Path.cwd().is_relative_to(moved):
        inside, hint = "it is the current folder", "run the command from outside of it"
    elif source is not None and any(path.is_relative_to(moved) for path in (source.absolute(), source.resolve())):
        inside, hint = f"{source} lies in it", f"give the new study a folder of its own with --study {folder / 'study'}"
    else:
        return
    raise StorageError(f"can't move {folder} to {_free_name(folder)}: {inside}", hint=hint)


def set_aside(folder: Path, source: Path | None) -> Path | None:
    """Moves an earlier study out of the way, under the next free name; None where there is none.

    Raises ``StorageError`` where it can't be moved, and where it is running: its process would go on writing to the
    old name.
    """
    if not (folder / DATABASE).exists():
        return None
    check_movable(folder, source)
    aside = _free_name(folder)
    try:
        with FolderLock(folder):
            return folder.rename(aside)
    except OSError as error:
        raise StorageError(f"can't move {folder} to {aside}: {error.strerror}", hint="choose another folder") from error


def _free_name(folder: Path) -> Path:
    """The next free name beside a study's folder; ``.`` and ``..`` are none to append to."""
    folder = folder if folder.name not in ("", "..") else folder.resolve()
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return aside
