"""The command line: finds the verb, runs it, and turns every error into text. Nothing else does that."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from tuner import __version__
from tuner.cli import devices, run, studies, study, trials
from tuner.errors import AutotuneError, ExitCode, UsageError, UserScriptError

VERBS = (study, run, trials, studies, devices)
BROKEN_PIPE = 141
"""What a shell reports for a program that died of SIGPIPE."""
ISSUES = "the project's issue tracker"


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting, so that wrong usage is told like every other error."""

    def error(self, message: str) -> NoReturn:
        hint = f"see: {self.prog} --help"
        if message.startswith("unrecognized arguments"):
            hint = "the script's own arguments go behind --, as in: autotune study train.py -- --lr 0.1"
        raise UsageError(message, hint=hint)


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
    except Exception:
        traceback.print_exc()
        print(f"error: this is a bug in autotune {__version__} [internal]", file=sys.stderr)
        print(f"hint: please report it with the lines above to {ISSUES}", file=sys.stderr)
        return ExitCode.INTERNAL


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = _Parser(
        prog="autotune",
        description="Finds, proves and applies the fastest training configuration for a script, without edits to it.",
        epilog="autotune VERB --help tells more of a verb.",
    )
    parser.add_argument("--version", action="version", version=f"autotune {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True, parser_class=_Parser)
    for verb in VERBS:
        verb.add_parser(verbs)
    return parser


def _dispatch(arguments: list[str]) -> int:
    ours, script_args = _split(arguments)
    try:
        parsed = build_parser().parse_args(_joined(ours))
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    if script_args is not None and parsed.verb not in ("study", "run"):
        raise UsageError(f"autotune {parsed.verb} takes nothing behind --")
    parsed.script_args = script_args
    code: int = parsed.run(parsed)
    return code


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
