"""The search space of a recorded grid: written into its header, and made of it again without whoever declared it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from tuner.knowledge import Knowledge
from tuner.model import Config, Device, Value, same_value
from tuner.space.declare import Knob, Known, SearchSpace
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace
from tuner.storage.grid import Grid, GridKnob

MOST_CONFIGS = 200_000
"""Of a space, before constraints, that are gone through one by one."""
_FLAGS = ("tier", "ordered", "loader", "heavier", "late", "own", "on_cores", "beyond_wait", "switchable")


def knobs_of(space: ResolvedSpace) -> tuple[GridKnob, ...]:
    """The axes as a header has them."""
    return tuple(
        GridKnob(
            axis.knob.name, axis.values, axis.as_written, axis.knob.meaning,
            **{name: getattr(axis.knob, name) for name in _FLAGS}, moot_beside=_moot_beside(space, axis.knob),
        )
        for axis in space.axes
    )  # fmt: skip


def configs_of(space: ResolvedSpace) -> Iterator[Config]:
    """The canonical configs that the constraints admit, each once, the script as written first if it is one."""
    seen = set[Config]()
    for values in itertools.product(*(_written_first(axis.values, axis.as_written) for axis in space.axes)):
        config = space.canonical(dict(zip((axis.knob.name for axis in space.axes), values, strict=True)))
        if config not in seen and space.allows(config):
            seen.add(config)
            yield config


def space_of(grid: Grid) -> ResolvedSpace:
    """The space whose configs are those that the grid holds: any other one breaks a constraint of it."""
    header = grid.header
    knowledge = Knowledge(
        as_written=header.as_written, framework=header.framework, effective_batch=header.effective_batch
    )
    device = Device(header.device_kind, 0, header.device_name, header.device_name, header.memory_bytes)
    known = Known(device, header.cores_of_a_rank, knowledge=knowledge, ranks=header.ranks)
    return resolve(search_space_of(grid), known, pinned=Config(header.pinned))


def search_space_of(grid: Grid) -> SearchSpace:
    """As ``space_of``, before a baseline is known."""
    recorded = _Recorded(grid)
    knobs = [_knob(knob) for knob in grid.header.knobs]
    knobs += [_pinned(name, value) for name, value in grid.header.pinned.items()]
    return SearchSpace(grid.header.space, grid.header.framework, tuple(knobs), recorded.allows, recorded.derive)


class _Recorded:
    """The configs of a grid, as constraints of its space."""

    def __init__(self, grid: Grid) -> None:
        self._knobs = grid.header.knobs
        axes = {knob.name for knob in self._knobs}
        self._follows = {
            Config({name: value for name, value in config.items() if name in axes}): {
                name: value for name, value in config.items() if name not in axes
            }
            for config in grid.configs
        }

    def derive(self, complete: Mapping[str, Value], knowledge: Knowledge) -> Mapping[str, Value]:
        """The knobs that follow from the others in the config that was recorded; none where none was."""
        return self._follows.get(self._turned(complete), {})

    def allows(self, complete: Mapping[str, Value], knowledge: Knowledge) -> bool:
        """Whether the config was recorded."""
        return self._turned(complete) in self._follows

    def _turned(self, complete: Mapping[str, Value]) -> Config:
        """What isn't as written, and means something beside the rest."""
        turned = {}
        for knob in self._knobs:
            value = complete[knob.name]
            if not same_value(value, knob.values[knob.as_written]) and not _is_moot(knob.moot_beside, complete):
                turned[knob.name] = value
        return Config(turned)


def _knob(recorded: GridKnob) -> Knob:
    return Knob(
        recorded.name, lambda known: recorded.values, recorded.meaning,
        **{name: getattr(recorded, name) for name in _FLAGS},
        needs=_needs(recorded.moot_beside) if recorded.moot_beside else None,
    )  # fmt: skip


def _pinned(name: str, value: Value) -> Knob:
    return Knob(name, lambda known: [value], "pinned")


def _needs(moot_beside: Mapping[str, Sequence[Value]]) -> Callable[[Mapping[str, Value]], bool]:
    return lambda complete: not _is_moot(moot_beside, complete)


def _is_moot(moot_beside: Mapping[str, Sequence[Value]], complete: Mapping[str, Value]) -> bool:
    return any(
        name in complete and any(same_value(complete[name], value) for value in values)
        for name, values in moot_beside.items()
    )


def _moot_beside(space: ResolvedSpace, knob: Knob) -> dict[str, tuple[Value, ...]]:
    """Another axis → those of its values beside which the knob means nothing, whatever the rest is.

    That is how knobs depend on each other; one that depends on several at once isn't told here, and the grid's own
    configs say the rest.
    """
    if knob.needs is None:
        return {}
    found = {}
    for other in space.axes:
        if other.knob.name == knob.name:
            continue
        moot = tuple(value for value in other.values if not _ever_means(space, knob, other.knob.name, value))
        # Beside none of them: then it isn't this one that decides.
        if moot and len(moot) < len(other.values):
            found[other.knob.name] = moot
    return found


def _ever_means(space: ResolvedSpace, knob: Knob, name: str, value: Value) -> bool:
    needs = knob.needs
    assert needs is not None
    others = [axis for axis in space.axes if axis.knob.name != name]
    names = [axis.knob.name for axis in others]
    return any(
        needs(space.complete({**dict(zip(names, values, strict=True)), name: value}))
        for values in itertools.islice(itertools.product(*(axis.values for axis in others)), MOST_CONFIGS)
    )


def _written_first(values: Sequence[Value], place: int) -> list[Value]:
    return [values[place], *values[:place], *values[place + 1 :]]
