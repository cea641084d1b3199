"""The script's own command-line options: seen through its parser, and set there where a knob is bound to one."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .applied import Effect
from .evidence import Finding
from .knobs import EFFECTIVE_BATCH
from .option_names import OPTION_NAMES, is_named, is_option_of, likeliest
from .patches import patch
from .records import Evidence, Value
from .session import ScriptOptions, Session
from .watch import Watch


@dataclass(frozen=True)
class _Option:
    """An option of the script's: its last flag, and the value that the parser gave."""

    flag: str
    value: Value


def install(session: Session) -> None:
    """Watches argparse, as ``parsers.py`` does other parsers; sets what the baseline found to be a knob's own."""
    if not session.uses(Watch.ARGUMENTS):
        return
    options = ParserOptions(session)
    session.options = options
    for knob in options.bound:
        session.knobs.delegate(knob)
    if session.applied is not None and options.bound:
        session.applied.attend(options.effects)
    if options.is_wanted:
        patch(argparse.ArgumentParser, "parse_known_args", options.parsing)


class ParserOptions(ScriptOptions):
    """What parsers have parsed, by destination. ``bound``: knob → destination of the option that it is set by."""

    def __init__(self, session: Session) -> None:
        request = session.request
        self._given = request.knowledge.given(request.config)
        self.bound = {
            knob: dest for knob, dest in request.knowledge.options.items()
            if knob in self._given and is_option_of(knob, dest)
        }  # fmt: skip
        self._applied: set[str] = set()
        self._session = session
        self._seen: dict[str, _Option] = {}

    def parsing(self, original: Any) -> Any:
        """``ArgumentParser.parse_known_args`` with the bound options set to the config's values."""

        def parse_known_args(parser: Any, args: Any = None, namespace: Any = None) -> Any:
            parsed, rest = original(parser, args, namespace)
            options = {
                action.dest: (action.option_strings[-1] if action.option_strings else "", getattr(parsed, action.dest))
                for action in parser._actions if hasattr(parsed, action.dest)
            }  # fmt: skip

            def put(dest: str, value: Value) -> None:
                for action in parser._actions:
                    if action.dest == dest:
                        parser._check_value(action, value)
                setattr(parsed, dest, value)

            self.parsed(options, put)
            return parsed, rest

        return parse_known_args

    @property
    def is_wanted(self) -> bool:
        """As ``ScriptOptions.is_wanted``."""
        return self._session.measuring or bool(self.bound)

    def parsed(self, options: Mapping[str, tuple[str, Any]], put: Callable[[str, Value], None]) -> None:
        """Sets the bound ones to the config's values, and remembers all."""
        values = {dest: value for dest, (_, value) in options.items()}
        for knob, dest in self.bound.items():
            if type(values.get(dest)) is int and self._is_of_training(knob, values[dest]):
                try:
                    put(dest, self._given[knob])
                except Exception as error:  # a rule of the script's own, which its parser keeps
                    why = " ".join(str(error).split())
                    self._session.knobs.refused[knob] = f"the script's parser refuses {self._given[knob]}: {why}"
                else:
                    self._compare(knob, values[dest])
                    values[dest] = self._given[knob]
                    self._applied.add(knob)
        for dest, (flag, _) in options.items():
            if flag and isinstance(values[dest], (bool, int, float, str)):
                self._seen[dest] = _Option(flag, values[dest])

    def _is_of_training(self, knob: str, told: int) -> bool:
        """Whether it may be the option that the baseline found: in a trial a size of batches is the one written then.

        What evaluates may have an option of the same name. In an applied run the training's own may be told another.
        """
        written = self._session.request.knowledge.as_written.get(knob)
        if self._session.applied is not None or knob not in EFFECTIVE_BATCH or type(written) is not int:
            return True
        return told in (written, self._given[knob])

    def _compare(self, knob: str, told: int) -> None:
        """Says of an applied run whose script was told another batch than the one that the profile was proven with."""
        given, known = self._given[knob], self._session.request.knowledge.as_written.get(knob)
        is_other = type(known) is int and told not in (known, given)
        if self._session.applied is None or knob not in EFFECTIVE_BATCH or not is_other:
            return
        self._session.applied.say(
            f"{knob}: the script was told {told}, and is given {given}, by a profile that was proven with {known}"
        )

    def value(self, knob: str) -> Value | None:
        """What its parser holds for the option of the knob's name, None where it knows of none."""
        option = self._named(knob)
        return None if option is None else option.value

    def flag(self, knob: str) -> str:
        """As ``ScriptOptions.flag``."""
        option = self._named(knob)
        return "" if option is None else option.flag

    def _named(self, knob: str) -> _Option | None:
        named = likeliest([dest for dest in self._seen if is_named(dest, knob)])
        return self._seen[named[0]] if named else None

    def effects(self) -> dict[str, Effect]:
        """For ``autotune run``: of each bound knob, whether the parser set its option."""
        flags = self._session.request.knowledge.option_flags
        missing = {
            knob: "the script's parser has no option {} that holds a whole number".format(
                flags.get(knob) or f"--{dest.replace('_', '-')}"
            )
            for knob, dest in self.bound.items()
        }
        reasons = {**missing, **self._session.knobs.refused}
        return {knob: Effect(1) if knob in self._applied else Effect(0, reasons[knob]) for knob in self.bound}

    def observe(self) -> None:
        """A knob has an option where one of its usual names holds the value that was observed in the loader."""
        facts, knobs = self._session.facts, self._session.knobs
        destinations: dict[str, str] = {}
        patched = "grad_accumulation" in facts.as_written and "grad_accumulation" not in facts.left_out
        for knob in OPTION_NAMES:
            if knob == "grad_accumulation" and patched:
                continue  # in parts the script's own batches, schedules and counts stay what they are
            written = facts.as_written.get(knob)
            named = [
                dest for dest, option in self._seen.items()
                if is_named(dest, knob) and type(option.value) is int and option.value == written
            ]  # fmt: skip
            # Of several any may be the training's, and the others would keep what they hold: the patches know which.
            best = likeliest(named) if knob in facts.left_out else named
            if len(best) == 1:
                destinations[knob] = best[0]
            elif best and knob in facts.left_out:
                flags = " and ".join(self._seen[dest].flag for dest in best)
                facts.left_out[knob] += f"; {flags} both hold {written}: bind one of them"
        for knob in set(EFFECTIVE_BATCH) & destinations.keys() - facts.kept_as_written:
            facts.left_out.pop(knob, None)  # what the patches can't do the script can
        facts.options = destinations
        facts.option_flags = {knob: self._seen[dest].flag for knob, dest in destinations.items()}
        for knob in knobs.arguments:
            value = self.value(knob)
            if value is not None:
                facts.arguments[knob] = value
            if knob in knobs.requested and knob not in knobs.reported:
                knobs.report(knob, self._of_argument(self._given[knob], value))

    def _of_argument(self, given: Value, parsed: Value | None) -> Finding:
        """An argument that no adapter knows: that the parser took it is all that can be seen."""
        if str(parsed).lower() == str(given).lower():
            return Finding(Evidence.VERIFIED, "", parsed)
        return Finding(Evidence.UNVERIFIABLE, "the script's argument parser doesn't show it", changed=0)
