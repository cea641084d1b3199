"""What a study is to be: the command line over study.toml over the defaults, each value checked and typed."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from tuner.analysis.accuracy import AccuracyLimits
from tuner.child.watch import Watch
from tuner.cli.quantities import parse_bytes, parse_fraction, parse_seconds
from tuner.errors import ScriptNotFoundError, UsageError
from tuner.knowledge import BOTH, FREE, KEEP, typed_value
from tuner.model import Config, Value, same_value
from tuner.space.registry import AUTO, is_file

FILE = "study.toml"
PRICES = "prices"
"""A table beside that of the study: see ``tuner/cli/prices.py``."""
DEFAULTS: Mapping[str, Any] = {
    "script": "", "module": "", "args": (), "device": "auto", "trials": 30, "budget": 1800.0, "trial_timeout": 120.0,
    "study": "", "knobs": (), "set": {}, "max_memory": "0.9", "space": AUTO, "objective": "throughput", "seed": 0,
    "effective_batch": BOTH, "max_loss_increase": 0.01, "min_sample_efficiency": 0.9, "max_metric_drop": {},
    "max_metric_rise": {}, "metric": {}, "screen_samples": None, "planned_samples": None, "probe": True,
    "without": frozenset(), "ranks": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """The choices of a study, typed but not yet held against the machine.

    ``source`` is the study.toml, ``loads`` the Python files that it names: whoever wrote it has them run in here.
    """

    script: str
    module: str
    args: tuple[str, ...]
    device: str
    trials: int
    budget_s: float
    trial_timeout_s: float
    folder: str
    knobs: tuple[str, ...]
    pinned: Config
    max_memory: str
    space: str
    objective: str
    seed: int
    effective_batch: str
    accuracy: AccuracyLimits
    planned_samples: int | None
    probe: bool
    source: Path | None
    loads: tuple[Path, ...] = ()
    without: frozenset[Watch] = frozenset()
    ranks: int = 1


def gather(arguments: argparse.Namespace, proven: Mapping[str, Any] | None = None) -> Settings:
    """Settings of ``autotune study``. Raises ``UsageError`` naming the option, or the file and its key.

    ``proven``: typed keys of what a profile was proven within, in place of whatever the file says of that.
    """
    command = _from_command_line(arguments)
    source = _find_file(command)
    declared = read_file(source) if source else {}
    if source and "script" in command and Path(command["script"]).is_dir():
        del command["script"]
        if not (declared.get("script") or declared.get("module")):
            raise UsageError(f"{source} names no script", hint='add script = "train.py" to its [study] table')
    elif source and not _speaks_of(declared, command):
        source, declared = None, {}
    if command.get("script") or command.get("module"):
        declared = {key: value for key, value in declared.items() if key not in ("script", "module")}
    if proven is not None:
        declared = {key: value for key, value in declared.items() if key not in _WITHIN} | dict(proven)
    loads = [declared[key] for key in ("space", "objective") if key not in command and is_file(declared.get(key, ""))]
    tables = {key: {**declared.get(key, {}), **command.get(key, {})} for key in _TABLES}
    merged = {**DEFAULTS, **declared, **command, **tables}
    return Settings(
        script=merged["script"], module=merged["module"], args=merged["args"], device=merged["device"],
        trials=merged["trials"], budget_s=merged["budget"], trial_timeout_s=merged["trial_timeout"],
        folder=merged["study"], knobs=merged["knobs"], pinned=Config(merged["set"]), max_memory=merged["max_memory"],
        space=merged["space"], objective=merged["objective"], seed=merged["seed"],
        effective_batch=merged["effective_batch"], planned_samples=merged["planned_samples"], source=source,
        accuracy=_accuracy(merged, {*declared, *command}), probe=merged["probe"], loads=tuple(map(Path, loads)),
        without=merged["without"], ranks=merged["ranks"],
    )  # fmt: skip


def _accuracy(merged: Mapping[str, Any], given: Collection[str]) -> AccuracyLimits:
    """The limits; what was ``given`` is no default.

    Raises ``UsageError`` for a metric that is bounded both ways, and for a pattern whose metric nothing bounds.
    """
    limits = AccuracyLimits(
        merged["max_loss_increase"], merged["max_metric_drop"], merged["max_metric_rise"], merged["metric"],
        merged["screen_samples"], merged["min_sample_efficiency"],
        efficiency_alone=merged["max_loss_increase"] is None and "min_sample_efficiency" in given,
    )  # fmt: skip
    for name in limits.max_metric_drop:
        if name in limits.max_metric_rise:
            raise UsageError(
                f"{name!r} is limited both ways",
                hint="--max-metric-drop is for metrics where higher is better, --max-metric-rise where lower is",
            )
    for name in limits.patterns:
        if name not in limits.metrics:
            raise UsageError(
                f"--metric: no limit is set for {name!r}",
                hint=f"as in: --max-metric-drop {name}=0.5%, or --max-metric-rise where lower is better",
            )
    return limits


def read_file(path: Path) -> dict[str, Any]:
    """The keys of a study.toml, typed. Relative paths in it start at its own folder."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"can't read {path}: {error}", hint="it is TOML in UTF-8, with one [study] table") from error
    document.pop(PRICES, None)  # those of autotune compare, which reads them
    table = document.pop("study", {})
    if document or not isinstance(table, dict):
        raise UsageError(
            f"{path}: unknown key {next(iter(document), 'study')!r}", hint="everything goes into one [study] table"
        )
    for key in table:
        if key not in _READERS:
            close = difflib.get_close_matches(key.replace("-", "_"), _READERS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the keys are: {', '.join(_READERS)}"
            raise UsageError(f"{path}: unknown key {key!r}", hint=hint)
    typed = typed_keys(table, f"{path}: ")
    for key in ("script", "study", "space", "objective"):
        named = os.path.expanduser(typed[key]) if typed.get(key, "").startswith("~/") else typed.get(key, "")
        if named and (key in ("script", "study") or named.endswith(".py")):
            typed[key] = os.path.normpath(path.parent / named)
    return typed


def typed_keys(entries: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Keys of a study.toml as their settings are typed. Raises ``UsageError`` naming the key and its value.

    ``place`` is what the error begins with: the file.
    """
    typed: dict[str, Any] = {}
    for key, value in entries.items():
        try:
            typed[key] = _READERS[key](value)
        except (ValueError, UsageError) as error:
            hint = error.hint if isinstance(error, UsageError) else ""
            raise UsageError(f"{place}{key} = {value!r}: {error}", hint=hint) from error
    return typed


def _from_command_line(arguments: argparse.Namespace) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, reader in _READERS.items():
        value = getattr(arguments, key, None)
        if value is None:
            continue
        try:
            settings[key] = reader(_assignments(key, value) if key in _TABLES else value)
        except (ValueError, UsageError) as error:
            hint = error.hint if isinstance(error, UsageError) else ""
            option = "SCRIPT" if key == "script" else f"--{key.replace('_', '-')}"
            raise UsageError(f"{option}: {error}", hint=hint) from error
    if arguments.script_args is not None:
        settings["args"] = tuple(arguments.script_args)
    return settings


def _assignments(key: str, texts: list[str]) -> dict[str, Value]:
    assigned: dict[str, Value] = {}
    for text in texts:
        # The name of a metric may hold "=", and so may a pattern.
        name, equals, value = text.rpartition("=") if key in _BOUNDS else text.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{text!r} is not NAME=VALUE", hint=_TABLES[key])
        typed = value if key == "metric" else typed_value(value)
        if name in assigned and not same_value(assigned[name], typed):
            raise UsageError(f"{name} is given twice, and otherwise: {value}", hint="give it once")
        assigned[name] = typed
    return assigned


def _find_file(command: Mapping[str, Any]) -> Path | None:
    """The study.toml beside the script, in the folder that was given instead, or here when nothing was."""
    folder = Path(command.get("script", ""))
    if command.get("script") and not folder.is_dir():
        folder = folder.parent
    file = folder / FILE
    if file.is_file():
        return file
    if command.get("script") and Path(command["script"]).is_dir():
        raise ScriptNotFoundError(f"there is no {file}", hint="give a script, or a folder with a study.toml")
    if not command.get("script") and not command.get("module"):
        hint = "the script stands behind the verb, as in: autotune study train.py"
        raise UsageError("no script given, and there is no study.toml here", hint=hint)
    return None


def _speaks_of(declared: Mapping[str, Any], command: Mapping[str, Any]) -> bool:
    """Whether a study.toml means the script on the command line: its neighbour may be another study's."""
    if not (command.get("script") or command.get("module")):
        if not (declared.get("script") or declared.get("module")):
            raise UsageError(f"./{FILE} names no script", hint='add script = "train.py" to its [study] table')
        return True
    if command.get("module"):
        return declared.get("module", command["module"]) == command["module"] and not declared.get("script")
    named = declared.get("script")
    return not declared.get("module") and (not named or Path(named).resolve() == Path(command["script"]).resolve())


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("expected a string that is not empty")
    return _without_nul(value)


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a NUL character ends a string: no path or argument can hold one")
    return text


def _effective_batch(value: Any) -> str:
    if value not in (BOTH, KEEP, FREE):
        raise ValueError(f"expected {BOTH}, {KEEP} or {FREE}, not {value!r}")
    return str(value)


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def _whole(minimum: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = value
        if isinstance(value, str):
            for kind in (float, int):  # 1e6; and all digits of a number that a float hasn't
                with suppress(ValueError):
                    number = kind(value)
        is_whole = isinstance(number, int) or (isinstance(number, float) and number.is_integer())
        if not is_whole or isinstance(number, bool) or number < minimum:
            raise UsageError(f"expected a whole number, at least {minimum}, unlike {value!r}")
        return int(number)

    return read


def _planned(value: Any) -> int | None:
    try:
        return None if value == "off" or value is False else _whole(1)(value)
    except UsageError as error:
        raise UsageError(f"{error}, or off") from error


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("expected a duration such as 30m")
    return parse_seconds(str(value))


def _amount(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("expected a size such as 20GiB or a share such as 0.9")
    parse_bytes(str(value), total=2**63)  # the device, and with it the total, isn't known yet: only the form is checked
    return str(value)


def _names(value: Any) -> tuple[str, ...]:
    entries = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, list) or not all(isinstance(entry, str) and entry.strip(" -") for entry in entries):
        raise ValueError("expected names of knobs, as in batch_size,-compile")
    return tuple(dict.fromkeys(entry.strip() for entry in entries))


def _watches(value: Any) -> frozenset[Watch]:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list):
        raise ValueError("expected names of watches, as in loader,files")
    for name in names:
        if name not in list(Watch):
            raise UsageError(f"there is no watch {name!r}", hint=f"the watches are: {', '.join(Watch)}")
    return frozenset(Watch(name) for name in names)


def _values(value: Any, entry: str = "num_workers = 4") -> dict[str, Value]:
    if not isinstance(value, dict) or not all(isinstance(v, (bool, int, float, str)) for v in value.values()):
        raise ValueError(f"expected a table, as in {{ {entry} }}")
    if "" in value:
        raise ValueError(f"a name is empty in it, unlike in {{ {entry} }}")
    for each in (*value, *value.values()):
        _without_nul(str(each))
    return value


def _arguments(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, (int, float, str)) for v in value):
        raise ValueError("expected a list of the script's arguments")
    return tuple(_without_nul(str(v)) for v in value)


def _fraction(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("expected a fraction such as 1%")
    # Python and JSON write small numbers as 1e-05, which isn't how people write a share.
    return parse_fraction(value if isinstance(value, str) else f"{Decimal(str(value)):f}")


def _fraction_or_off(value: Any) -> float | None:
    return None if value == "off" or value is False else _fraction(value)


def _efficiency_or_off(value: Any) -> float | None:
    share = _fraction_or_off(value)
    if share is not None and not 0 < share < 1:
        raise ValueError("expected a share of the samples such as 90%, or off")
    return share


def _fractions(value: Any) -> dict[str, float]:
    return {name: _fraction(fraction) for name, fraction in _values(value, 'accuracy = "0.5%"').items()}


def _patterns(value: Any) -> dict[str, str]:
    entries = _values(value, "accuracy = 'accuracy ([0-9.]+)'")
    patterns = {name: str(pattern) for name, pattern in entries.items()}
    for name, pattern in patterns.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{name}: {pattern!r} is not a regular expression: {error}") from error
    return patterns


_TABLES: Mapping[str, str] = {
    "set": "as in: --set num_workers=4",
    "max_metric_drop": "as in: --max-metric-drop accuracy=0.5%",
    "max_metric_rise": "as in: --max-metric-rise perplexity=1%",
    "metric": "as in: --metric accuracy='val acc: ([0-9.]+)'",
}
"""Keys that hold a table; on the command line an option for each entry."""
_BOUNDS = frozenset({"max_metric_drop", "max_metric_rise"})
_WITHIN = _BOUNDS | {
    "max_loss_increase", "min_sample_efficiency", "metric", "screen_samples", "effective_batch", "ranks"
}  # fmt: skip
"""Keys of what makes a proof: where a profile says none of one, it had none, or the default."""
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "script": _text, "module": _text, "args": _arguments, "device": _text, "trials": _whole(1), "budget": _seconds,
    "trial_timeout": _seconds, "study": _text, "knobs": _names, "set": _values, "max_memory": _amount, "space": _text,
    "objective": _text, "seed": _whole(0), "effective_batch": _effective_batch,
    "max_loss_increase": _fraction_or_off, "min_sample_efficiency": _efficiency_or_off, "max_metric_drop": _fractions,
    "max_metric_rise": _fractions,
    "metric": _patterns, "screen_samples": _whole(1), "planned_samples": _planned, "probe": _yes_or_no,
    "without": _watches, "ranks": _whole(1),
}  # fmt: skip
