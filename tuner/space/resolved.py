"""What a study searches of a space: its axes, the forms of a config, and which ones are allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tuner.knowledge import Knowledge
from tuner.model import Config, Device, LeftOut, Value, same_value
from tuner.space.declare import Knob, SearchSpace


@dataclass(frozen=True)
class Axis:
    """A knob with its values for one script on one device. ``as_written`` is the index of the script's own value;
    ``told`` says what was measured for the values, "" where they are the usual ones; ``unlikely`` why they hardly help.
    """

    knob: Knob
    values: tuple[Value, ...]
    as_written: int
    told: str = ""
    unlikely: str = ""


@dataclass(frozen=True)
class ResolvedSpace:
    """What a study searches: the axes, the knobs left out with the reason, and those pinned by ``--set``.

    A complete config gives every knob a value, and is a plain dict; a ``Config`` is canonical: what is as written, and
    what means nothing beside the rest, is absent. ``cores`` are those that each rank may use. ``larger`` are the
    batches that would make the effective batch larger, from the smallest on, and the script's own; None where none are
    tried, ``no_larger`` says why ("" where that wasn't asked for). ``lighter`` is the knob that spares memory, for
    these alone; None without one. ``device`` is the one that it was resolved for; ``spare_cores`` are beside
    ``cores``, and others may use them. ``ranks``: so many processes train together.
    """

    space: SearchSpace
    axes: tuple[Axis, ...]
    left_out: Mapping[str, LeftOut]
    pinned: Config
    knowledge: Knowledge
    cores: int
    larger: Axis | None = None
    no_larger: str = ""
    device: Device | None = None
    spare_cores: int = 0
    lighter: Axis | None = None
    ranks: int = 1

    @property
    def host_cores(self) -> int:
        """Cores that the training may use, of all ranks together: what a measurement tells of cores is of these."""
        return self.cores * self.ranks

    @property
    def size(self) -> int:
        """How many configs the axes span, before constraints."""
        return math.prod(len(axis.values) for axis in self.axes)

    def config_of(self, indices: Mapping[str, int]) -> Config:
        """The canonical config at ``indices`` (knob → index into its axis)."""
        complete = self.complete({axis.knob.name: axis.values[indices[axis.knob.name]] for axis in self.axes})
        return self.canonical(complete)

    def complete(self, config: Mapping[str, Value]) -> dict[str, Value]:
        """The config with every knob filled in: from what the script wrote, then from what follows from the others."""
        if not isinstance(config, Config):
            return self._filled_in(config)
        known = self._completed.get(config)
        if known is None:
            known = self._completed[config] = self._filled_in(config)
        return dict(known)

    @cached_property
    def _completed(self) -> dict[Config, dict[str, Value]]:
        """Of configs that were asked for: a proposal asks for each trial's many times."""
        return {}

    def _filled_in(self, config: Mapping[str, Value]) -> dict[str, Value]:
        values = {**self._written, **self.pinned, **config}
        derived = self.space.derive(values, self.knowledge)
        # What the user pinned stays: a rule of the space must not undo it unseen.
        return {**values, **{name: value for name, value in derived.items() if name not in self.pinned}}

    @cached_property
    def _written(self) -> dict[str, Value]:
        return {
            **self.knowledge.as_written,
            **{axis.knob.name: axis.values[axis.as_written] for axis in self.axes},
        }

    def canonical(self, config: Mapping[str, Value]) -> Config:
        """The config without what equals the script's own values and without what means nothing beside the rest."""
        if not isinstance(config, Config):
            return self._in_canonical_form(config)
        known = self._canonical.get(config)
        if known is None:
            known = self._canonical[config] = self._in_canonical_form(config)
        return known

    @cached_property
    def _canonical(self) -> dict[Config, Config]:
        """Of configs that were asked for: a proposal asks for each of those that it looks at several times."""
        return {}

    def _in_canonical_form(self, config: Mapping[str, Value]) -> Config:
        complete = self._without_moot(self.complete(config))
        written = self._written
        candidates = [*self.searched, *self.space.derive(complete, self.knowledge)]
        result: dict[str, Value] = dict(self.pinned)
        for name in candidates:
            if name not in result and not (name in written and same_value(complete[name], written[name])):
                result[name] = complete[name]
        return Config(result)

    def _without_moot(self, complete: dict[str, Value]) -> dict[str, Value]:
        """Knobs that mean nothing beside the rest as they were written; that may make others mean nothing."""
        for _ in self.axes:
            moot = {
                axis.knob.name: axis.values[axis.as_written]
                for axis in self.axes
                if axis.knob.needs is not None and not axis.knob.needs(complete)
            }
            if all(same_value(complete[name], value) for name, value in moot.items()):
                break
            complete = self.complete({**complete, **moot})
        return complete

    def allows(self, config: Mapping[str, Value]) -> bool:
        """Whether the constraints between knobs admit the config. What the user's own pins break binds nobody."""
        return self.space.allowed(self.complete(config), self.knowledge) or not self.space.allowed(
            self.complete(self.pinned), self.knowledge
        )

    @cached_property
    def searched(self) -> tuple[str, ...]:
        """The knobs that are turned, in the space's order."""
        names = [axis.knob.name for axis in self.axes]
        others = [axis.knob.name for axis in (self.larger, self.lighter) if axis is not None]
        return tuple(dict.fromkeys([*names, *others]))

    def is_larger(self, config: Mapping[str, Value]) -> bool:
        """Whether the config is one of the contest of larger effective batches."""
        if self.larger is None:
            return False
        own = config.get(self.larger.knob.name)
        written = self.larger.values[self.larger.as_written]
        return own is not None and own != written and any(same_value(own, value) for value in self.larger.values)

    def keeps_batch(self, config: Mapping[str, Value]) -> bool:
        """Whether the config is one of those that the search is for in the first place: of no larger batch."""
        return self.allows(config) and not self.is_larger(config)

    def with_larger(self, config: Mapping[str, Value], value: Value) -> Config:
        """The config with that larger batch in place of its own, and with what follows from it."""
        assert self.larger is not None
        return self.canonical({**self.without_batch(config), self.larger.knob.name: value})

    @property
    def lighter_name(self) -> str:
        """The knob that spares memory; "" without one."""
        return self.lighter.knob.name if self.lighter is not None else ""

    def spared(self, config: Mapping[str, Value]) -> Config | None:
        """A config that keeps its batch, with what spares memory; None where nothing does beside the rest of it."""
        if self.lighter is None or not same_value(
            self.complete(config)[self.lighter.knob.name], self.lighter.values[self.lighter.as_written]
        ):
            return None
        other = next(value for place, value in enumerate(self.lighter.values) if place != self.lighter.as_written)
        spared = self.canonical({**config, self.lighter.knob.name: other})
        return spared if self.allows(spared) else None

    def without_batch(self, config: Mapping[str, Value]) -> Config:
        """The config without its batch and what follows from that: what a larger one is tried on top of."""
        if self.larger is None:
            return Config(config)
        follows = {self.larger.knob.name, *self.space.derive(self.complete(config), self.knowledge)}
        return Config({name: value for name, value in config.items() if name not in follows or name in self.pinned})

    def indices_of(self, config: Mapping[str, Value]) -> dict[str, int]:
        """Knob → index of the config's value; the inverse of ``config_of``. Raises ``ValueError`` off the axes."""
        complete = self.complete(config)
        return {name: index_in(places, complete[name]) for name, places in self._places.items()}

    def row_of(self, config: Config) -> tuple[int, ...] | None:
        """The indices alone, in the axes' order; None off the axes, and of what turns more than they do."""
        if config not in self._rows:
            self._rows[config] = self._row_of(config)
        return self._rows[config]

    def _row_of(self, config: Config) -> tuple[int, ...] | None:
        try:
            indices = self.indices_of(config)
        except ValueError:
            return None
        meant = self.complete(self.config_of(indices))
        return tuple(indices.values()) if Config(meant) == Config(self.complete(config)) else None

    @cached_property
    def _rows(self) -> dict[Config, tuple[int, ...] | None]:
        """Of configs that were asked for: a proposal asks for each trial's many times."""
        return {}

    @cached_property
    def _places(self) -> dict[str, dict[tuple[type, Value], int]]:
        """Knob → the places of its axis' values."""
        return {axis.knob.name: places_of(axis.values) for axis in self.axes}


def places_of(values: Sequence[Value]) -> dict[tuple[type, Value], int]:
    """Each value, with its type since True is not 1 here → its index."""
    return {(type(value), value): place for place, value in enumerate(values)}


def index_in(places: Mapping[tuple[type, Value], int], wanted: Value) -> int:
    """The wanted value's, by ``places_of``; raises ``ValueError`` where it is none of them."""
    place = places.get((type(wanted), wanted))
    if place is None:
        raise ValueError(f"{wanted!r} is none of {[value for _, value in places]}")
    return place
