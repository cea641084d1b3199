"""Parsers of command lines beside argparse: what they parsed are the script's options, set where one is a knob's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from .adapter import Adapter, Library
from .patches import patch
from .records import Value
from .session import Session


class ParsersAdapter(Adapter):
    """absl's flags, which scripts of JAX's and TensorFlow's often have; click, and Typer, which is built on it."""

    framework = "parsers"

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def libraries(self) -> Mapping[str, Library]:
        """The modules that hold what is patched."""
        clicks = ("click.core", "typer._click.core")  # newer Typers have a copy of their own
        return {"absl.flags": Library(self._absl), **{name: Library(self._click) for name in clicks}}

    def _absl(self, flags: ModuleType) -> None:
        told = self.session.options.parsed

        def calling(original: Callable[..., Any]) -> Callable[..., Any]:
            def __call__(values: Any, argv: Any, known_only: bool = False) -> Any:
                rest = original(values, argv, known_only)
                defined = [values[name] for name in values]  # each once more where it has a short name
                told({each.name: (f"--{each.name}", each.value) for each in defined}, partial(setattr, values))
                return rest

            return __call__

        if self.session.options.is_wanted:
            patch(flags.FlagValues, "__call__", calling)

    def _click(self, core: ModuleType) -> None:
        told = self.session.options.parsed

        def making(original: Callable[..., Any]) -> Callable[..., Any]:
            def make_context(command: Any, *args: Any, **kwargs: Any) -> Any:
                made = original(command, *args, **kwargs)
                options = [each for each in command.params if each.name in made.params]
                flags = {each.name: max(each.opts, key=len) for each in options}  # of an argument its name
                named = {name: (flag if flag[0] == "-" else "", made.params[name]) for name, flag in flags.items()}
                types = {each.name: each.type for each in options}

                def put(name: str, value: Value) -> None:
                    if (taken := types[name](str(value), None, made)) != value:  # as it was typed
                        raise ValueError(f"it makes {taken} of it")
                    made.params[name] = value

                told(named, put)
                return made

            return make_context

        if self.session.options.is_wanted:
            patch(core.Command, "make_context", making)
