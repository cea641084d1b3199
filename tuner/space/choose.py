"""Which search space a study gets: the one that was asked for, else that of the framework that trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.errors import UnknownKnobError, UntunableError, UsageError
from tuner.knowledge import Knowledge
from tuner.model import Value
from tuner.space.arguments import Placeholder, extend_space
from tuner.space.declare import SearchSpace
from tuner.space.resolve import selected_names


@dataclass(frozen=True)
class Spaces:
    """The search spaces that a study may use. One that is ``forced`` is taken whatever the script trains with."""

    declared: tuple[SearchSpace, ...]
    forced: bool = True

    def check(
        self, placeholders: Mapping[str, Placeholder], selection: Sequence[str], pinned: Mapping[str, Value]
    ) -> None:
        """Before the framework is known: whether one of the spaces takes everything that was asked for.

        Raises ``UnknownKnobError`` and ``UsageError``.
        """
        torn = next((name for name in selection if f"-{name}" in selection), None)
        if torn is not None:
            raise UsageError(f"{torn} is both chosen and left out", hint="name it once, with a minus or without")
        torn = next((name for name in pinned if f"-{name}" in selection), None)
        if torn is not None:
            raise UsageError(
                f"{torn} is both set and left out",
                hint="do one of the two: what is set isn't searched, and what is left out stays as written",
            )
        union = extend_space(self._union(), placeholders)
        for name in [*selected_names(selection), *pinned]:
            union.knob(name)
        errors: dict[str, UsageError] = {}
        for space in self.declared:
            try:
                _check(extend_space(space, placeholders), selection, pinned)
                return
            except UsageError as error:
                errors[space.name] = error
        # All names are known, so a space that lacks one belongs to another framework: its error says least.
        values = {name: error for name, error in errors.items() if not isinstance(error, UnknownKnobError)}
        if not values:
            raise self._mixed([*selected_names(selection), *pinned, *_unvalued(placeholders)])
        raise _of_all(values)

    def chosen(
        self, knowledge: Knowledge, placeholders: Mapping[str, Placeholder], asked: Iterable[str]
    ) -> SearchSpace:
        """The space of the framework that trained the baseline, with the arguments' own knobs.

        Raises ``UntunableError`` where none fits, ``UnknownKnobError`` where a knob ``asked`` for is another's.
        """
        space = self._fitting(knowledge)
        its_own = {knob.name for knob in space.knobs}
        valued = {name for name, placeholder in placeholders.items() if placeholder.choices}
        for name in [*asked, *_unvalued(placeholders)]:
            others = ", ".join(repr(other.name) for other in self._owners(name))
            if others and name not in its_own and name not in valued:
                raise UnknownKnobError(
                    f"{name} is a knob of {others}, and the script trains with {_framework(knowledge)}",
                    hint=f"the knobs of {space.name} are: {', '.join(sorted(its_own))}",
                )
        return extend_space(space, placeholders)

    def _fitting(self, knowledge: Knowledge) -> SearchSpace:
        if self.forced:
            return self.declared[0]
        framework = knowledge.framework
        if not framework:
            # Then only what the script asks for itself can be turned: whoever knows most of that. Of the rest, knobs of
            # a framework that the script doesn't use, nobody wants to know.
            written = set(knowledge.as_written)
            most = max(self.declared, key=lambda space: len(written & {knob.name for knob in space.knobs}))
            return replace(most, knobs=tuple(replace(knob, silent_unmet=True) for knob in most.knobs))
        fitting = [space for space in self.declared if space.framework == framework]
        # A third party's space stands beside the one that came along, and is taken when it is named.
        fitting = [space for space in fitting if space.name == framework] or fitting
        if len(fitting) == 1:
            return fitting[0]
        names = ", ".join(f"{space.name} (for {space.framework})" for space in fitting or self.declared)
        raise UntunableError(
            f"the script trains with {_framework(knowledge)}, and"
            f" {'several search spaces are' if fitting else 'no search space is'} installed for that",
            hint=f"installed are: {names}; --space NAME|FILE takes one of them, or one of your own",
        )

    def _union(self) -> SearchSpace:
        """All names; what values they take is for each space to say."""
        if len(self.declared) == 1:
            return self.declared[0]
        knobs = {knob.name: replace(knob, value_type=None, least=None) for s in self.declared for knob in s.knobs}
        *names, last = (space.name for space in self.declared)
        return SearchSpace(f"{', '.join(names)} and {last}", "", tuple(knobs.values()))

    def _owners(self, name: str) -> list[SearchSpace]:
        return [space for space in self.declared if any(knob.name == name for knob in space.knobs)]

    def _mixed(self, names: Iterable[str]) -> UsageError:
        owners = {name: " and ".join(space.name for space in self._owners(name)) for name in names}
        return UnknownKnobError(
            "no search space has all the knobs that are named",
            hint=f"they are of {'; '.join(f'{spaces}: {name}' for name, spaces in owners.items() if spaces)}",
        )


def _of_all(errors: Mapping[str, UsageError]) -> UsageError:
    """The first one; with what each space says of the knob, by its name, where they say it differently."""
    first, hints = next(iter(errors.values())), {name: error.hint for name, error in errors.items() if error.hint}
    alike = all(str(error) == str(first) for error in errors.values())
    if alike and len({*hints.values()}) > 1:
        first.hint = "; ".join(f"in {name} {hint}" for name, hint in hints.items())
    return first


def _check(space: SearchSpace, selection: Sequence[str], pinned: Mapping[str, Value]) -> None:
    for name in selected_names(selection):
        space.knob(name)
    for name, value in pinned.items():
        space.knob(name).check(value)


def _unvalued(placeholders: Mapping[str, Placeholder]) -> list[str]:
    """Bound knobs whose values a space has to give."""
    return [placeholder.knob for placeholder in placeholders.values() if not placeholder.choices]


def _framework(knowledge: Knowledge) -> str:
    named = knowledge.framework or "no framework that is known"
    return " ".join(part for part in (named, knowledge.framework_version) if part)
