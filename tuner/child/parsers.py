"""Parsers of command lines beside argparse: what they parsed are the script's options, set where one is a knob's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from inspect import getclosurevars, isfunction, signature
from types import ModuleType
from typing import Any

from .adapter import Adapter, Library
from .patches import patch
from .records import Value
from .session import Session

_Place = tuple[Any, str, Any]
"""What holds a value, by which key, and the value."""
_OTHERWISE_MADE = suppress(AttributeError, KeyError, TypeError, ValueError)
"""Around what reads a library's own objects: where another version has others, the script's options aren't seen."""


class ParsersAdapter(Adapter):
    """absl's flags, which scripts of JAX's and TensorFlow's often have, and configs of ml_collections' among these;
    click, and Typer, which is built on it; tyro, Fire and Hydra, which give a function or a class what they parsed.
    """

    framework = "parsers"

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def libraries(self) -> Mapping[str, Library]:
        """The modules that hold what is patched."""
        clicks = ("click.core", "typer._click.core")  # newer Typers have a copy of their own
        return {
            "absl.flags": Library(self._absl), **{name: Library(self._click) for name in clicks},
            "tyro._calling": Library(self._tyro), "fire.core": Library(self._fire),
            "hydra.core.utils": Library(self._hydra),
        }  # fmt: skip

    def _patch(self, place: Any, name: str, hooked: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        if self.session.options.is_wanted:
            patch(place, name, hooked)

    def _absl(self, flags: ModuleType) -> None:
        told = self.session.options.parsed

        def calling(original: Callable[..., Any]) -> Callable[..., Any]:
            def __call__(values: Any, argv: Any, known_only: bool = False) -> Any:
                rest = original(values, argv, known_only)
                defined = {values[name].name: values[name].value for name in values}  # each may have a short name, too
                # A field of a config that was typed is a flag as well, and no longer read as one.
                in_order = sorted(defined.items(), key=lambda each: _is_config(each[1]))
                places = {name: place for flag, value in in_order for name, place in _places(flag, values, flag, value)}

                def put(name: str, value: Value) -> None:
                    holder, key, _ = places[name]
                    setattr(holder, key, value)

                told({name: (f"--{name}", value) for name, (_, _, value) in places.items()}, put)
                return rest

            return __call__

        self._patch(flags.FlagValues, "__call__", calling)

    def _click(self, core: ModuleType) -> None:
        told = self.session.options.parsed

        def making(original: Callable[..., Any]) -> Callable[..., Any]:
            def make_context(command: Any, *args: Any, **kwargs: Any) -> Any:
                made = original(command, *args, **kwargs)
                options = [each for each in command.params if each.name in made.params]
                flags = {each.name: max(each.opts, key=len) for each in options}  # of an argument its name
                named = {name: (flag if flag[0] == "-" else "", made.params[name]) for name, flag in flags.items()}

                def put(name: str, value: Value) -> None:
                    option = next(each for each in options if each.name == name)
                    with made.scope(cleanup=False):  # which the option's own callback may ask for
                        taken = option.process_value(made, str(value))  # as it was typed
                    if taken != value:
                        raise ValueError(f"it makes {taken} of it")
                    made.params[name] = value

                told(named, put)
                return made

            return make_context

        self._patch(core.Command, "make_context", making)

    def _tyro(self, calls: ModuleType) -> None:
        told = self.session.options.parsed

        def parsing(original: Callable[..., Any]) -> Callable[..., Any]:
            def callable_with_args(*args: Any, **kwargs: Any) -> Any:
                """Called for each class of a nested one, too: what is typed for its fields begins with its name."""
                made = original(*args, **kwargs)
                with _OTHERWISE_MADE:
                    call, _ = made
                    asked, given = signature(original).bind(*args, **kwargs).arguments, _keywords_of(call)
                    # Where one of several classes is chosen, tyro puts all of it into a field of its own.
                    outer = [each for each in asked["field_name_prefix"].split(".") if each and each[:6] != "__tyro"]
                    group = "".join(f"{each}." for each in outer)
                    flags = {name: flag for name, flag in _flags(asked["parser_definition"]) if name in given}
                    told(
                        {f"{group}{name}": (flag, given[name]) for name, flag in flags.items()},
                        lambda name, value: given.__setitem__(name.removeprefix(group), value),
                    )
                return made

            return callable_with_args

        self._patch(calls, "callable_with_args", parsing)

    def _fire(self, core: ModuleType) -> None:
        told = self.session.options.parsed

        def making(original: Callable[..., Any]) -> Callable[..., Any]:
            def make_parse_fn(function: Any, metadata: Any) -> Any:
                parse = original(function, metadata)

                def tell(given: list[Any], named: dict[str, Any]) -> None:
                    spec = core.inspectutils.GetFullArgSpec(function)
                    names = spec.args

                    def put(name: str, value: Value) -> None:
                        if name in names[: len(given)]:
                            given[names.index(name)] = value
                        else:  # Fire leaves out what is by name only, and wasn't typed
                            named[name] = value

                    values = {**dict(zip(names, given, strict=False)), **spec.kwonlydefaults, **named}
                    told({name: (f"--{name}", value) for name, value in values.items()}, put)

                def parse_fn(args: Any) -> Any:
                    made = parse(args)
                    with _OTHERWISE_MADE:
                        tell(*made[0])
                    return made

                return parse_fn

            return make_parse_fn

        self._patch(core, "_MakeParseFn", making)

    def _hydra(self, core: ModuleType) -> None:
        told = self.session.options.parsed

        def running(original: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:  # Hydra looks for its own in a traceback, by its name
                with _OTHERWISE_MADE:
                    config = signature(original).bind(*args, **kwargs).arguments["config"]
                    omega = sys.modules["omegaconf"].OmegaConf
                    every = _fields(omega.to_container(config, resolve=False))
                    fields = {name: value for name, value in every if not name.startswith("hydra.")}
                    told(
                        {name: (_override(name), value) for name, value in fields.items()},
                        lambda name, value: omega.update(config, name, value),
                    )
                return original(*args, **kwargs)

            return run

        self._patch(core, "run_job", running)


def _keywords_of(call: Callable[[], Any]) -> dict[str, Any]:
    """What tyro will give a function or a class: the dictionary itself."""
    if isinstance(call, partial):
        return call.keywords
    keywords = getclosurevars(call).nonlocals.get("kwargs") if isfunction(call) else None
    return keywords if isinstance(keywords, dict) else {}


def _flags(parser: Any) -> Iterator[tuple[str, str]]:
    """What a function's or a class' own arguments are called, and their flags as tyro has them; "" of one without.

    A flag needn't be called as its field is, nor begin with the names of those around it: the script may say so.
    """
    for argument in parser.args:
        lowered = argument.lowered
        names = getattr(lowered, "name_or_flags", None) or (lowered.name_or_flag,)  # of an older tyro
        if not lowered.is_fixed():  # to what the script says
            yield argument.field.call_argname, max((each for each in names if each[:1] == "-"), key=len, default="")


def _override(name: str) -> str:
    """What sets Hydra's field on a command line: with the plus by which the user adds one that no config has."""
    given = (argument.partition("=")[0] for argument in sys.argv[1:] if "=" in argument)
    return next((key for key in given if key.lstrip("+") == name), name) + "="


def _fields(config: Mapping[Any, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of nested mappings, by the names that Hydra has for them: ``train.batch_size``.

    Not those that refer to another field, which follow that one, nor those that have no value.
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{group}{key}.")
        elif not (isinstance(value, str) and ("${" in value or value == "???")):
            yield f"{group}{key}", value


def _is_config(value: object) -> bool:
    config = getattr(sys.modules.get("ml_collections"), "ConfigDict", None)
    return config is not None and isinstance(value, config)


def _places(name: str, holder: Any, key: str, value: Any, *around: object) -> Iterator[tuple[str, _Place]]:
    """The place of a flag; of a config those of its fields, by the names that these are typed by.

    ``around``: configs that it is a field of. A config may hold itself.
    """
    if not _is_config(value):
        yield name, (holder, key, value)
    elif not any(value is each for each in around):
        for field in value:
            try:
                inner = value[field]
            except Exception:  # one that is required, and wasn't given
                continue
            yield from _places(f"{name}.{field}", value, field, inner, value, *around)
