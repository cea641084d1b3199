"""Measures the real loop and each side of it by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tuner.bottleneck import Bottleneck, find_bottleneck
from tuner.lock import DeviceLock, FolderLock
from tuner.model import Config, Measurement, Outcome
from tuner.placeholders import extend_facts, first_knowledge, parse, render
from tuner.plan import StudyPlan
from tuner.refusal import refusal
from tuner.runner.base import Runner, TrialRequest
from tuner.space import Known, ResolvedSpace, resolve, selected_names

FOLDER = "probe"


def probe(
    plan: StudyPlan, runner: Runner, tell: Callable[[str, Outcome], None], stop: threading.Event
) -> tuple[Bottleneck, ResolvedSpace]:
    """Four runs in fresh processes. ``tell`` gets each one's name and outcome.

    Raises ``UserScriptError`` and ``UntunableError`` where the real loop gives no figure, ``Interrupted`` when
    ``stop`` is set, and the errors of the locks.
    """
    placeholders = parse(plan.script.argv)
    with FolderLock(plan.folder), DeviceLock(plan.device, str(plan.folder)):
        knowledge: Mapping[str, Any] = first_knowledge(placeholders)

        def run(name: str, side: str, config: Config) -> Outcome:
            script = replace(plan.script, argv=render(plan.script.argv, config))
            folder = plan.folder / FOLDER / name
            request = TrialRequest(
                folder, script, plan.device, config, knowledge, plan.window, plan.limits, probe=side
            )  # fmt: skip
            outcome = runner.run(request, stop)
            tell(name, outcome)
            return outcome

        real = run("real loop", "", {})
        if not real.complete or real.measurement is None:
            raise refusal(real, plan.folder / FOLDER / "real loop" / "log.txt")
        knowledge = extend_facts({**real.facts, "effective_batch": "free"}, placeholders)
        known = Known(plan.device, plan.cores, facts=knowledge)
        chosen = plan.spaces.chosen(knowledge, placeholders, selected_names(plan.selection))
        space = resolve(chosen, known, selection=plan.selection, pinned={})
        compute = loader = half = None
        if knowledge.get("training_loaders"):
            compute = _measured(run("computing alone", "compute", {}))
            loader = _measured(run("loader alone", "loader", {}))
            size = knowledge["as_written"].get("batch_size")
            if compute is not None and any(a.knob.name == "batch_size" for a in space.axes) and int(size) > 1:
                half = _measured(run("computing half a batch", "compute", {"batch_size": int(size) // 2}))
        found = find_bottleneck(
            real.measurement, compute=compute, loader=loader, half=half, space=space,
            headroom_bytes=_headroom(plan, real.measurement),
        )  # fmt: skip
        return found, space


def _measured(outcome: Outcome) -> Measurement | None:
    return outcome.measurement if outcome.complete else None


def _headroom(plan: StudyPlan, real: Measurement) -> int | None:
    """Bytes between what the script takes and its limit, of the device or of the host."""
    if plan.device.kind == "cuda":
        limit, peak = plan.limits.max_device_bytes, real.peak_device_bytes
    else:
        limit, peak = plan.limits.max_host_bytes, real.peak_host_bytes
    return None if limit is None else limit - peak
