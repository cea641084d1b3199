"""What a search space declares: knobs, and the constraints between them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.errors import SpaceError, UnknownKnobError, UsageError
from tuner.knowledge import Knowledge
from tuner.model import Device, Value


@dataclass(frozen=True)
class Known:
    """What a knob's choices and refusal may depend on.

    ``cores`` are those that the training may use, ``spare_cores`` others of the machine; of several ``ranks``, those
    that each of them may use. ``as_written`` is the script's own value of the knob in question, None where the script
    shows none. ``knowledge`` is what the baseline showed of the script.
    """

    device: Device
    cores: int
    as_written: Value | None = None
    knowledge: Knowledge = field(default_factory=Knowledge)
    spare_cores: int = 0
    ranks: int = 1


@dataclass(frozen=True)
class Knob:
    """One thing that can be turned.

    ``choices`` gives the values worth trying; the script's own need not be among them. ``meaning`` is a few words for
    people. ``tier`` is what the knob may change: 1 nothing but speed, 2 numerics, 3 the optimisation. Tier 1 isn't
    screened: ``tier_reason`` says in a sentence why it is right, and so why the training can't be another one.
    ``ordered``: neighbouring values act alike, so that the search may climb. ``devices``: the kinds of device that it
    exists on, None for all. ``needs`` receives a complete config (every knob has a value) and says whether the knob
    means anything beside the others (prefetching needs workers); where it doesn't, it is dropped.
    ``refuses`` gives the reason to leave the knob out of this study, or "".

    ``late`` knobs (compilers) are tried after the cheap ones. ``loader`` knobs feed the loop, and are judged by the
    whole rate; the others by the rate without the wait for data. More of a ``heavier`` one takes more memory.
    ``own`` ones are arguments of the script that no space declares: nobody has said what they change, so they are
    judged by the whole rate.
    ``value_type`` is the type that a value must have, None for any, and ``least`` the smallest number.
    ``on_cores``: it is a number of threads or processes at once, of which more than the machine's cores are of no use;
    of those that make batches (``loader``) they may be, where they are seen to wait, or to gain.
    ``beyond_wait``: a ``loader`` one that may gain more than the loop is seen to wait, as it makes copies faster.
    ``keeps_up`` receives a number of such workers and the share of its time in [0, 1) that the loop waits with them,
    and gives the number that would keep up with the loop: the walk goes there first.
    ``told`` says what its values were measured by; "" where they are the usual ones.
    ``spares_memory``: it takes less memory and more time, and is tried only with larger batches that don't fit without.
    ``switchable``: the framework's adapter can turn it between two steps of a script that runs; see ``rotation``.
    ``fixed_in_ranks``: whether, by what is known, what ranks exchange gradients by fixes it: then it isn't there.
    ``unlikely`` gives the reason why none of its values is likely to help here, or "": the walk tries it behind others.
    ``for_ranks``: it means something only where several ranks train one model; in one process nobody is told of it.
    ``silent_elsewhere``: nor is anybody told of this one on other kinds of device than its own.
    ``silent_unmet``: nor of this one where the script has nothing that it could turn. ``unmet``: what it lacks then,
    for whoever asks for it by its name; "" where there is no more to say.
    """

    name: str
    choices: Callable[[Known], Sequence[Value]]
    meaning: str
    tier: int = 1
    tier_reason: str = ""
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
    on_cores: bool = False
    beyond_wait: bool = False
    switchable: bool = False
    fixed_in_ranks: Callable[[Knowledge], bool] | None = None
    keeps_up: Callable[[Value, float], float] | None = None
    told: Callable[[Known], str] | None = None
    spares_memory: bool = False
    unlikely: Callable[[Known], str] | None = None
    for_ranks: bool = False
    silent_elsewhere: bool = False
    silent_unmet: bool = False
    unmet: str = ""

    @property
    def waits_at_times(self) -> bool:
        """Whether it is a number of processes or threads that make batches, which may wait rather than compute."""
        return self.loader and self.on_cores

    def is_on(self, kind: str) -> bool:
        """Whether it exists on that kind of device."""
        return self.devices is None or kind in self.devices

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
    """The knobs of one framework, and the constraints between them. Raises ``SpaceError`` for two knobs of one name.

    ``allowed`` receives a complete config (every knob has a value) and what is known of the script, and says whether
    the config makes sense. ``derive`` receives the same and gives the knobs that follow from the others: knob → value.
    ``larger`` is the knob of batches that make the effective batch larger, beside the one of that name among ``knobs``,
    which keeps it: its values are a contest of their own (tier 3), and ``allowed`` needn't admit them. ``sha256``: the
    content of the file that declares it, "" without one; autotune fills it in.
    """

    name: str
    framework: str
    knobs: tuple[Knob, ...]
    allowed: Callable[[Mapping[str, Value], Knowledge], bool] = lambda complete, knowledge: True
    derive: Callable[[Mapping[str, Value], Knowledge], Mapping[str, Value]] = lambda complete, knowledge: {}
    larger: Knob | None = None
    sha256: str = ""

    def __post_init__(self) -> None:
        names = [knob.name for knob in self.knobs]
        if len(set(names)) != len(names):
            raise SpaceError(f"search space {self.name!r} declares a knob twice: {sorted(names)}")

    def knob(self, name: str) -> Knob:
        """The knob of that name. Raises ``UnknownKnobError``, which names those there are and the closest one."""
        for knob in self.knobs:
            if knob.name == name:
                return knob
        names = sorted(knob.name for knob in self.knobs)
        close = difflib.get_close_matches(name, names, n=1)
        meant = f"did you mean {close[0]!r}? " if close else ""
        hint = f"{meant}the knobs of {self.name} are: {', '.join(names)}"
        raise UnknownKnobError(f"unknown knob {name!r}", hint=hint)
