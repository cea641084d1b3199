"""The command line: finds the verb, runs it, and turns every error into text. Nothing else does that."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import io
import os
import shlex
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, cast

from tuner import __version__
from tuner.cli.printable import printable
from tuner.cli.script import is_interpreter, refuse_launcher
from tuner.cli.verb import Subparsers, Verb
from tuner.errors import AutotuneError, ExitCode, OwnFaultError, StorageError, UsageError, UserScriptError
from tuner.masking import masked

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

VERBS = {
    "study": "tuner.cli.study",
    "run": "tuner.cli.run",
    "verify": "tuner.cli.verify",
    "probe": "tuner.cli.probe",
    "record": "tuner.cli.record",
    "trials": "tuner.cli.trials",
    "studies": "tuner.cli.studies",
    "compare": "tuner.cli.compare",
    "merge": "tuner.cli.merge",
    "devices": "tuner.cli.devices",
}
"""Verb → the module that implements ``Verb``, imported only when it is used: ``run`` must start without a database."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_STANDARD_ERROR = 2
"""The last of the numbers of standard streams."""
BROKEN_PIPE = 141
"""What a shell reports for a program that died of SIGPIPE."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting, so that wrong usage is reported like every other error."""

    def __init__(self, **options: Any) -> None:
        # An abbreviation that works today is another option's name tomorrow.
        super().__init__(**options, allow_abbrev=False)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """As argparse's, which hides that help couldn't be written."""
        (file or sys.stdout).write(message)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see: {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status. Raises ``KeyboardInterrupt``, which has been told."""
    _open_streams()
    _print_every_letter()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except AutotuneError as error:
        return _report(error)
    except KeyboardInterrupt:
        with suppress(OSError):
            print("interrupted", file=sys.stderr)
        sys.excepthook = _tells_nothing
        raise  # Python ends by the signal then: a shell's loop goes on after any exit status
    except BrokenPipeError:
        # Whoever read our output has enough of it; the interpreter's own flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except SystemExit:
        return BROKEN_PIPE  # rich exits on a broken pipe, after the same redirection
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            hint = "free some space, or have what is printed go elsewhere"
            code = _report(StorageError(f"a disk is full: {error.strerror}", hint=hint))
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's own flush at exit
            return code
        if isinstance(error, FileNotFoundError) and _is_nowhere():
            return _report(StorageError("the current folder was removed", hint="cd to a folder that is there"))
        traceback.print_exc()
        print(f"error: this is a bug in autotune {__version__} [internal]", file=sys.stderr)
        print("hint: please report it with the lines above", file=sys.stderr)
        return ExitCode.INTERNAL


def _is_nowhere() -> bool:
    """Whether the current folder isn't there any more, so that no path can be made out from it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _tells_nothing(*raised: object) -> None:
    """What was raised has been told."""


def _open_streams() -> None:
    """Has standard streams that the caller closed lead nowhere: the next file that is opened would bear their numbers,
    and get what is printed. A program that takes this one's place finds them closed, as it would without us.
    """
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        pass
    sys.stdin, sys.stdout, sys.stderr = (
        stream or os.fdopen(os.dup(nowhere), mode)
        for stream, mode in ((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w"))
    )
    os.close(nowhere)


def _print_every_letter() -> None:
    """Has what standard output's encoding lacks written as ``\\xe9``, as Python does on standard error: a path may hold
    any letter, and locales of ASCII or Latin-1 are about.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def build_parser(names: Iterable[str] | None = None) -> argparse.ArgumentParser:
    """The parser of these verbs, of all without names."""
    parser = _Parser(
        prog="autotune",
        description="Finds, proves and applies the fastest training configuration for a script, without edits to it.",
        epilog="autotune VERB --help describes a verb.",
    )
    parser.add_argument("--version", action="version", version=f"autotune {__version__}")
    verbs: Subparsers = parser.add_subparsers(
        dest="verb", metavar="VERB", title="verbs", required=True, parser_class=_Parser
    )
    for name in VERBS if names is None else names:
        _verb(name).add_parser(verbs)
    return parser


def _verb(name: str) -> Verb:
    return cast(Verb, importlib.import_module(VERBS[name]))


def _dispatch(arguments: list[str]) -> int:
    ours, script_args = _split(arguments)
    names = _verbs_of(ours)
    try:
        parsed, unknown = build_parser(names).parse_known_args(_joined(ours))
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    verb = _verb(parsed.verb)
    if unknown:
        raise _unrecognized(parsed, verb, unknown, ours)
    if script_args is not None and not verb.TAKES_SCRIPT_ARGUMENTS:
        raise UsageError(f"autotune {parsed.verb} takes nothing after --")
    parsed.script_args = script_args
    return verb.run(parsed)


def _unrecognized(parsed: argparse.Namespace, verb: Verb, unknown: Sequence[str], ours: Sequence[str]) -> UsageError:
    """The error for arguments that the verb doesn't know: a misspelt option, the script's own, or a command line.

    Raises that for a launcher where one is called.
    """
    script = getattr(parsed, "script", None)
    meant = _meant(parsed.verb, unknown[0])
    if script and not os.path.isdir(script):  # a folder with a study.toml may be called as one
        refuse_launcher(script, parsed.verb)
    if verb.TAKES_SCRIPT_ARGUMENTS:
        words = shlex.join(["autotune", parsed.verb, *_required(parsed)])
        if script and is_interpreter(script):
            hint = f"{script} is the interpreter, not a script: {words} {_behind_interpreter(unknown)}"
        else:
            example = f"{words} {_named_script(script, unknown, ours)}"
            hint = f"the script's own arguments go after --, as in: {example}"
    else:
        hint = f"see: autotune {parsed.verb} --help"
    shown = " ".join(masked(unknown))
    return UsageError(f"unrecognized arguments: {shown}", hint=f"did you mean {meant}? {hint}" if meant else hint)


def _required(parsed: argparse.Namespace) -> list[str]:
    """The options without which the verb isn't taken, as they were given."""
    actions = _options(parsed.verb).values()
    required = dict.fromkeys(action for action in actions if action.required)
    return [word for each in required for word in (each.option_strings[-1], str(getattr(parsed, each.dest)))]


def _options(verb: str) -> Mapping[str, argparse.Action]:
    """The verb's options by their names."""
    verbs: Subparsers = _Parser().add_subparsers(parser_class=_Parser)
    _verb(verb).add_parser(verbs)
    return verbs.choices[verb]._option_string_actions


def _meant(verb: str, unknown: str) -> str:
    """The option of the verb that the argument resembles; "" where none does."""
    name = unknown.partition("=")[0]
    close = difflib.get_close_matches(name, _options(verb), n=1, cutoff=0.75)
    return next(iter(close), "") if name.startswith("--") else ""


def _named_script(taken: str | None, unknown: Sequence[str], arguments: Sequence[str]) -> str:
    """The script, and what is taken for its own arguments behind a --: as they stand, an option's value may have been
    ``taken`` for the script, which stands behind it.
    """
    script = next((each for each in unknown if each.endswith(".py")), "") if taken and ".py" not in taken else ""
    pairs = zip(["", *arguments], arguments, strict=False)  # what merely equals the value is no option's value
    behind = [each for before, each in pairs if each in unknown or (each == taken and before in unknown)]
    own = [each for each in behind if each != script] if script else unknown
    return f"{script or 'train.py'} -- {' '.join(masked(own))}"


def _behind_interpreter(words: Sequence[str]) -> str:
    """The script and its arguments, of what stands behind ``python``: its own options in between are left out."""
    at = next((number for number, word in enumerate(words) if word.endswith(".py")), None)
    script, own = ("train.py", ()) if at is None else (words[at], words[at + 1 :])
    return f"{script} -- {' '.join(masked(own))}" if own else script


def _verbs_of(arguments: Sequence[str]) -> Sequence[str]:
    """The verb that is called; all of them where the command itself is asked for help."""
    first = arguments[0] if arguments else ""
    if first in VERBS:
        return (first,)
    if first.startswith("-"):
        return tuple(VERBS)
    hint = f"the verbs are: {', '.join(VERBS)}; see: autotune --help"
    if not first:
        raise UsageError("no verb given", hint=hint)
    close = difflib.get_close_matches(first, VERBS, n=1)
    if close:
        hint = f"did you mean {close[0]}?"
    elif first.endswith(".py"):
        hint = f"as in: autotune study {first}"
    raise UsageError(f"there is no verb {first!r}", hint=hint)


def _split(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """Ours, and the script's behind the first ``--`` (None without one)."""
    if "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _joined(arguments: list[str]) -> list[str]:
    """``--knobs -compile`` as ``--knobs=-compile``, which argparse would take for an option; and the home folder in
    place of ``~`` in ``--study=~/studies``, where shells leave it as it is.
    """
    joined: list[str] = []
    for argument in arguments:
        option, equals, value = argument.partition("=~/")
        if joined and joined[-1] == "--knobs":
            joined[-1] = f"--knobs={argument}"
        elif equals and option.startswith("--") and "=" not in option:  # a value of the script's is its own
            joined.append(f"{option}={os.path.expanduser(f'~/{value}')}")
        else:
            joined.append(argument)
    return joined


def _report(error: AutotuneError) -> int:
    """Prints the error and its hint to standard error, as far as that takes them; gives the exit status."""
    lines = [f"error: {printable(error.message, lines=True)} [{error.slug}]"]
    if isinstance(error, (UserScriptError, OwnFaultError)) and error.traceback_text:
        lines.insert(0, error.traceback_text.rstrip("\n"))
    if error.hint:
        lines.append(f"hint: {printable(error.hint, lines=True)}")
    with suppress(OSError):
        for line in lines:
            print(line, file=sys.stderr)
    return error.exit_code
