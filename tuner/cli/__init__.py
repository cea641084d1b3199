"""The command line: finds the verb, runs it, and turns every error into text. Nothing else does that."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from tuner import __version__
from tuner.errors import AutotuneError, ExitCode, UsageError, UserScriptError

VERBS = ("study", "run", "probe", "trials", "studies", "devices")
"""Each is a module of this package, loaded when it is asked for: a training needs no database to start."""
BROKEN_PIPE = 141
"""What a shell reports for a program that died of SIGPIPE."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting, so that wrong usage is told like every other error."""

    def __init__(self, **options: Any) -> None:
        # An abbreviation that works today is another option's name tomorrow.
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see: {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except AutotuneError as error:
        return _tell(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough of it; the interpreter's own flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except SystemExit:
        return BROKEN_PIPE  # that is how rich tells it, after the same redirection
    except Exception:
        traceback.print_exc()
        print(f"error: this is a bug in autotune {__version__} [internal]", file=sys.stderr)
        print("hint: please report it with the lines above", file=sys.stderr)
        return ExitCode.INTERNAL


def build_parser(names: Sequence[str] = VERBS) -> argparse.ArgumentParser:
    """The parser of these verbs."""
    parser = _Parser(
        prog="autotune",
        description="Finds, proves and applies the fastest training configuration for a script, without edits to it.",
        epilog="autotune VERB --help tells more about a verb.",
    )
    parser.add_argument("--version", action="version", version=f"autotune {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True, parser_class=_Parser)
    for name in names:
        importlib.import_module(f"tuner.cli.{name}").add_parser(verbs)
    return parser


def _dispatch(arguments: list[str]) -> int:
    ours, script_args = _split(arguments)
    names = _verbs_of(ours)
    try:
        parsed, unknown = build_parser(names).parse_known_args(_joined(ours))
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    if unknown:
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)}", hint=_place_for(unknown, parsed.verb))
    if script_args is not None and parsed.verb not in ("study", "run", "probe"):
        raise UsageError(f"autotune {parsed.verb} takes nothing behind --")
    parsed.script_args = script_args
    code: int = parsed.run(parsed)
    return code


def _verbs_of(arguments: Sequence[str]) -> Sequence[str]:
    """The verb that is called, all of them where it's the command itself that is asked for help."""
    first = arguments[0] if arguments else ""
    if first in VERBS:
        return (first,)
    if first.startswith("-"):
        return VERBS
    listed = f"the verbs are: {', '.join(VERBS)}; autotune --help tells more"
    if not first:
        raise UsageError("no verb is given", hint=listed)
    close = difflib.get_close_matches(first, VERBS, n=1)
    if close:
        listed = f"did you mean {close[0]}?"
    elif first.endswith(".py"):
        listed = f"as in: autotune study {first}"
    raise UsageError(f"there is no verb {first!r}", hint=listed)


def _place_for(unknown: Sequence[str], verb: str) -> str:
    if verb in ("study", "run", "probe"):
        return f"the script's own arguments go behind --, as in: autotune {verb} train.py -- {' '.join(unknown)}"
    return f"see: autotune {verb} --help"


def _split(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """Ours, and the script's behind the first ``--`` (None without one)."""
    if "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _joined(arguments: list[str]) -> list[str]:
    """``--knobs -compile`` as ``--knobs=-compile``: argparse would take the value for an option."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] == "--knobs":
            joined[-1] = f"--knobs={argument}"
        else:
            joined.append(argument)
    return joined


def _tell(error: AutotuneError) -> int:
    if isinstance(error, UserScriptError) and error.traceback_text:
        print(error.traceback_text.rstrip("\n"), file=sys.stderr)
    print(f"error: {error.message} [{error.slug}]", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    return error.exit_code
