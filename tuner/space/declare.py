"""Knobs, and what can be tried of them once the baseline has shown what the script wrote."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.errors import SpaceError, UnknownKnobError, UsageError
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Device, LeftOut, Value, same_value


@dataclass(frozen=True)
class Known:
    """What a knob's choices may depend on. ``as_written`` is None where the script shows no value."""

    device: Device
    cores: int
    as_written: Value | None = None
    knowledge: Knowledge = field(default_factory=Knowledge)


@dataclass(frozen=True)
class Knob:
    """One thing that can be turned.

    ``choices`` gives the values worth trying; ``devices`` the kinds it exists on (None: all); ``tier`` what it may
    change: 1 nothing but speed, 2 numerics, 3 the optimisation. ``needs`` says whether the knob means
    anything beside the rest of a config (prefetching needs workers); where it doesn't, it is dropped.
    ``refuses`` gives the reason to leave the knob out of this study, or "".
    ``late`` knobs (compilers) are tried after the cheap ones. ``loader`` knobs feed the loop, and are judged by the
    whole rate; the others by the rate without the wait for data. More of a ``heavier`` one takes more memory.
    ``own`` ones are arguments of the script that no space declares: nobody has said what they change, so they are
    judged by the whole rate.
    ``value_type`` and ``least`` are what a value has to be; a knob without a type takes any.
    """

    name: str
    choices: Callable[[Known], Sequence[Value]]
    meaning: str
    tier: int = 1
    ordered: bool = False
    devices: frozenset[str] | None = None
    needs: Callable[[Mapping[str, Value]], bool] | None = None
    refuses: Callable[[Known], str] | None = None
    late: bool = False
    loader: bool = False
    heavier: bool = False
    own: bool = False
    value_type: type[bool] | type[int] | type[float] | type[str] | None = None
    least: int | None = None

    def check(self, value: Value) -> None:
        """Raises ``UsageError`` for a value that no script could take, such as one pinned with a slip."""
        whole_for_float = self.value_type is float and type(value) is int
        if self.value_type is not None and type(value) is not self.value_type and not whole_for_float:
            wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}[self.value_type]
            raise UsageError(f"{self.name}={value}: {self.name} takes {wanted}", hint=f"it is: {self.meaning}")
        if self.least is not None and isinstance(value, (int, float)) and value < self.least:
            raise UsageError(f"{self.name}={value}: {self.name} is at least {self.least}")


@dataclass(frozen=True)
class SearchSpace:
    """A declaration: knobs of one framework and the constraints between them.

    ``allowed`` receives a complete config (every knob has a value) and says whether it makes sense.
    ``derive`` receives one too and gives the knobs that follow from the others.
    """

    name: str
    framework: str
    knobs: tuple[Knob, ...]
    allowed: Callable[[Mapping[str, Value], Knowledge], bool] = lambda complete, knowledge: True
    derive: Callable[[Mapping[str, Value], Knowledge], Mapping[str, Value]] = lambda complete, knowledge: {}

    def __post_init__(self) -> None:
        names = [knob.name for knob in self.knobs]
        if len(set(names)) != len(names):
            raise SpaceError(f"search space {self.name!r} declares a knob twice: {sorted(names)}")

    def knob(self, name: str) -> Knob:
        """The knob of that name. Raises ``UnknownKnobError`` with the names there are."""
        for knob in self.knobs:
            if knob.name == name:
                return knob
        names = sorted(k.name for k in self.knobs)
        close = difflib.get_close_matches(name, names, n=1)
        meant = f"did you mean {close[0]!r}? " if close else ""
        hint = f"{meant}the knobs of {self.name!r} are: {', '.join(names)}"
        raise UnknownKnobError(f"unknown knob {name!r}", hint=hint)


@dataclass(frozen=True)
class Axis:
    """A knob with its values for one script on one device; ``as_written`` is the baseline's index."""

    knob: Knob
    values: tuple[Value, ...]
    as_written: int


@dataclass(frozen=True)
class ResolvedSpace:
    """What a study searches: the axes, the knobs left out with the reason, and those pinned by ``--set``."""

    space: SearchSpace
    axes: tuple[Axis, ...]
    left_out: Mapping[str, LeftOut]
    pinned: Config
    knowledge: Knowledge

    @property
    def size(self) -> int:
        """How many configs the axes span, before constraints."""
        product = 1
        for axis in self.axes:
            product *= len(axis.values)
        return product

    def config_of(self, indices: Mapping[str, int]) -> Config:
        """The canonical config at ``indices`` (axis name → index): what is as written or moot is absent."""
        complete = self.complete({axis.knob.name: axis.values[indices[axis.knob.name]] for axis in self.axes})
        return self.canonical(complete)

    def complete(self, config: Mapping[str, Value]) -> dict[str, Value]:
        """The config with every knob filled in: from what the script wrote, then from what follows from the others."""
        known = {**self._written, **self.pinned, **config}
        derived = self.space.derive(known, self.knowledge)
        # What the user pinned stays: a rule of the space must not undo it unseen.
        return {**known, **{name: value for name, value in derived.items() if name not in self.pinned}}

    @property
    def _written(self) -> dict[str, Value]:
        return {
            **self.knowledge.as_written,
            **{axis.knob.name: axis.values[axis.as_written] for axis in self.axes},
        }

    def canonical(self, config: Mapping[str, Value]) -> Config:
        """The config without what equals the script's own values and without what means nothing beside the rest."""
        complete = self._without_moot(self.complete(config))
        written = self._written
        candidates = [*self.space.derive(complete, self.knowledge), *(axis.knob.name for axis in self.axes)]
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

    def indices_of(self, config: Mapping[str, Value]) -> dict[str, int]:
        """Axis name → index of the config's value; the inverse of ``config_of`` for canonical configs."""
        complete = self.complete(config)
        return {axis.knob.name: _index(axis.values, complete[axis.knob.name]) for axis in self.axes}


def resolve(
    space: SearchSpace,
    known: Known,
    *,
    selection: Sequence[str] = (),
    pinned: Mapping[str, Value] = BASELINE,
) -> ResolvedSpace:
    """What can be searched, given the knowledge that the baseline gave.

    ``selection`` holds knob names to search, or ``-name`` to leave one out; empty means all.
    Raises ``UnknownKnobError`` for names that the space doesn't declare, ``UsageError`` for a pinned word that means
    nothing here.
    """
    for name in [*pinned, *selected_names(selection)]:
        space.knob(name)
    for name, value in pinned.items():
        _check_word(space.knob(name), value, known)
    wanted = {entry for entry in selection if not entry.startswith("-")}
    unwanted = {entry[1:] for entry in selection if entry.startswith("-")}
    knowledge = known.knowledge
    left_out: dict[str, LeftOut] = {}
    axes: list[Axis] = []
    for knob in space.knobs:
        if knob.name not in pinned and (knob.name in unwanted or (wanted and knob.name not in wanted)):
            left_out[knob.name] = LeftOut("not selected", unselected=True)
            continue
        reason = _reason_to_leave_out(knob, known, pinned)
        if reason:
            left_out[knob.name] = LeftOut(reason)
            continue
        written = knowledge.as_written[knob.name]
        values = _distinct([written, *knob.choices(_known_for(known, written))], ordered=knob.ordered)
        if len(values) < 2:
            left_out[knob.name] = LeftOut(f"only one value makes sense here: {written}")
            continue
        axes.append(Axis(_beside(knob, knowledge), values, _index(values, written)))
    return ResolvedSpace(space, tuple(axes), left_out, Config(pinned), knowledge)


def _beside(knob: Knob, knowledge: Knowledge) -> Knob:
    """The knob; where the script has it only beside other values of its arguments, it means nothing without them."""
    arguments = knowledge.beside.get(knob.name)
    if arguments is None:
        return knob
    needs = knob.needs or (lambda config: True)
    return replace(knob, needs=lambda c: all(same_value(c.get(name), v) for name, v in arguments.items()) and needs(c))


def selected_names(selection: Sequence[str]) -> list[str]:
    """The knobs that a selection speaks of, also those that it leaves out."""
    return [entry.removeprefix("-") for entry in selection]


def _check_word(knob: Knob, value: Value, known: Known) -> None:
    """A number may be any; of words there are only those that the knob offers here, or that the script wrote."""
    if knob.value_type is not str or knob.name in known.knowledge.placeholders:
        return
    written = known.knowledge.as_written.get(knob.name)
    offered = [*knob.choices(_known_for(known, written)), *([] if written is None else [written])]
    if value not in offered:
        words = ", ".join(dict.fromkeys(str(word) for word in offered))
        raise UsageError(f"{knob.name}={value}: that is none of its values here", hint=f"they are: {words}")


def _reason_to_leave_out(knob: Knob, known: Known, pinned: Mapping[str, Value]) -> str:
    reasons = known.knowledge.left_out
    if knob.name in pinned:
        return f"pinned to {pinned[knob.name]}"
    if knob.devices is not None and known.device.kind not in knob.devices:
        return f"means nothing on {known.device.kind}"
    if knob.name in reasons:
        return reasons[knob.name]
    if knob.name not in known.knowledge.as_written:
        return "nothing in the script that it could turn"
    written = known.knowledge.as_written[knob.name]
    if knob.value_type is int and type(written) is not int:
        return f"the script's own value is {written}, which is no whole number"
    return knob.refuses(known) if knob.refuses is not None else ""


def _known_for(known: Known, written: Value | None) -> Known:
    return Known(known.device, known.cores, written, known.knowledge)


def _index(values: Sequence[Value], wanted: Value) -> int:
    for index, value in enumerate(values):
        if same_value(value, wanted):
            return index
    raise ValueError(f"{wanted!r} is none of {list(values)}")


def _distinct(values: Sequence[Value], *, ordered: bool) -> tuple[Value, ...]:
    """Values without repeats (True is not 1 here), sorted where the knob is ordered."""
    seen: dict[tuple[str, Value], Value] = {}
    for value in values:
        seen.setdefault((type(value).__name__, value), value)
    distinct = list(seen.values())
    if ordered:
        distinct.sort(key=lambda v: float(v) if isinstance(v, (int, float)) else 0.0)
    return tuple(distinct)
