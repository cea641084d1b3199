"""Which configs a model looks at: all of a small space; of a large one those near the best trials, and some others."""

from __future__ import annotations

import numpy as np

from tuner.search.history import History
from tuner.search.tried import Indices

ENUMERATED = 3000
"""A space of no more configs is looked at as a whole."""
NEAR = 3
"""So many of the best trials have all their neighbours looked at."""
MIXED, APART, ANYWHERE = 500, 500, 400
"""So many configs are drawn: of the best trials' values, with two to three knobs of the best one turned, of all."""
PARENTS = 8


def candidates(history: History, chance: np.random.Generator) -> Indices:
    """Rows of indices into the space's axes, each once; those that were tried may be among them.

    Knobs without effect stay as written.
    """
    in_effect = {axis.knob.name for axis in history.axes}
    sizes = [len(axis.values) if axis.knob.name in in_effect else 1 for axis in history.space.axes]
    written = np.array([axis.as_written for axis in history.space.axes], dtype=np.int64)
    fixed = np.array([axis.knob.name not in in_effect for axis in history.space.axes], dtype=bool)
    if np.prod(sizes, dtype=np.float64) <= ENUMERATED:
        rows = np.stack([grid.ravel() for grid in np.indices(sizes)], axis=1).astype(np.int64)
    else:
        rows = _drawn(history, np.array(sizes), chance)
    return np.unique(np.where(fixed, written, rows), axis=0)


def _drawn(history: History, sizes: Indices, chance: np.random.Generator) -> Indices:
    order = np.argsort(-history.tried.gains, kind="stable")
    best = history.tried.indices[order]
    neighbours = []
    for row in best[:NEAR]:
        for place, size in enumerate(sizes):
            block = np.repeat(row[None, :], size, axis=0)
            block[:, place] = np.arange(size)
            neighbours.append(block)
    parents = best[:PARENTS]
    which = chance.integers(0, len(parents), (MIXED, len(sizes)))
    mixed = parents[which, np.arange(len(sizes))]
    anywhere = chance.integers(0, sizes, (ANYWHERE, len(sizes)))
    apart = np.repeat(best[:1], APART, axis=0)
    others = chance.integers(0, sizes, apart.shape)
    moved = chance.random(apart.shape) < 2.5 / len(sizes)
    return np.concatenate([*neighbours, mixed, anywhere, np.where(moved, others, apart)])
