"""A made-up grid: every config of the made-up world's space, with the turns that a recording of it would have read."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from support import worlds
from tuner.knowledge import Knowledge
from tuner.model import Config, OutcomeKind, Side, Value
from tuner.space.declare import Known, SearchSpace
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace
from tuner.storage.grid import SCHEMA, Grid, GridEvidence, GridHeader, GridReading, GridRow
from tuner.storage.grid_space import configs_of, knobs_of

TURN_S = 0.25


def header_of(space: ResolvedSpace, count: int, **changes: Any) -> GridHeader:
    """A header that goes with the space."""
    values: dict[str, Any] = {
        "schema": SCHEMA, "name": "made-up", "version": "0", "recorded": "2026-11-01", "script": "train.py",
        "script_sha256": "0" * 64, "arguments": (), "device_kind": "cpu", "device_name": "made up",
        "memory_bytes": 16 * 2**30, "cores": space.cores, "software": {"python": "3"}, "space": space.space.name,
        "framework": space.space.framework, "effective_batch": "keep", "knobs": knobs_of(space),
        "as_written": dict(space.knowledge.as_written), "pinned": dict(space.pinned), "configs": count,
        "complete": True, "seed": 0, "window_s": 1.0, "warmup_s": 0.5, "turn_s": TURN_S, "trial_timeout_s": 120.0,
    }  # fmt: skip
    return GridHeader(**{**values, **changes})


def made_up_grid(
    world: worlds.World | None = None, *, pairs: int = 6, noise: float = 0.03, space: ResolvedSpace | None = None
) -> Grid:
    """Of the made-up world; ``noise`` is that of a turn, on both sides. A trial took ten seconds, a failed one five."""
    world, space = world or worlds.World(), space or worlds.resolved()
    rows = [row(world, config, pairs, noise) for config in configs_of(space)]
    side = GridReading("samples", blocks=((250.0, 1.0),), steps_per_s=4.0)
    probed = GridRow({}, OutcomeKind.COMPLETE, 4.0, side=Side.COMPUTE, reading=side)
    return Grid(header_of(space, len(rows) - 1), (rows[0], probed, *rows[1:]))


def row(world: worlds.World, config: Config, pairs: int, noise: float) -> GridRow:
    """What a trial of the config came to."""
    outcome = world.outcome(config)
    if outcome.measurement is None:
        return GridRow(dict(config), outcome.kind, outcome.seconds, outcome.reason, outcome.detail)
    chance = random.Random(f"{sorted(config.items())}")
    rate, wait = world.truth(config)
    written, _ = world.truth(Config())

    def turn(of: float) -> tuple[float, float, float]:
        return of * TURN_S * (1 + chance.gauss(0, noise)), TURN_S, 0.0

    read = tuple((*turn(rate), *turn(written)) for _ in range(pairs)) if config else ()
    blocks = () if config else tuple(turn(rate)[:2] for _ in range(pairs))
    knobs = tuple(GridEvidence(report.knob, report.evidence) for report in outcome.measurement.knobs)
    reading = GridReading(
        "samples", read, blocks, steps_per_s=rate / 64, wait_share=wait, host_bytes=2**28, first_step_s=1.0,
        warmup_s=0.5, knobs=knobs,
    )  # fmt: skip
    return GridRow(dict(config), outcome.kind, outcome.seconds, reading=reading)


def following() -> ResolvedSpace:
    """A space with a knob that follows from another one, as micro-batches follow from the batch size."""

    def parts(complete: Mapping[str, Value], knowledge: Knowledge) -> dict[str, Value]:
        size = int(complete["batch_size"])
        return {"parts": 512 // size} if size != 64 else {}

    knobs = tuple(knob for knob in worlds.SPACE.knobs if knob.name in ("workers", "prefetch", "batch_size"))
    declared = SearchSpace("following", "none", knobs, derive=parts)
    return resolve(declared, Known(worlds.DEVICE, 8, knowledge=Knowledge(as_written=worlds.WRITTEN)))
