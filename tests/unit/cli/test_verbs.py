"""A verb is a module and an entry in one list: shown with one that tuner/ knows nothing of."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tuner.cli import VERBS, compare, devices, main, merge, probe, record, run, studies, study, trials, verify
from tuner.cli.verb import Subparsers, Verb
from tuner.errors import StorageError

# The type checker holds each module to the protocol.
MODULES: dict[str, Verb] = {
    "study": study, "run": run, "verify": verify, "probe": probe, "record": record, "trials": trials,
    "studies": studies, "compare": compare, "merge": merge, "devices": devices,
}  # fmt: skip


def add_parser(verbs: Subparsers) -> None:
    parser = verbs.add_parser("greet", help="say hello", usage="autotune greet [--whom NAME]")
    parser.add_argument("--whom", default="world", help="who is greeted")


def greet(arguments: argparse.Namespace) -> int:
    if arguments.whom == "nobody":
        raise StorageError("there is nobody", hint="name somebody")
    print(f"hello {arguments.whom}, {arguments.script_args}")
    return 0


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The verb ``greet``, in a module of the test's own."""
    module = ModuleType("made_up_verb")
    module.__dict__.update(add_parser=add_parser, run=greet, TAKES_SCRIPT_ARGUMENTS=True)
    monkeypatch.setitem(sys.modules, "made_up_verb", module)
    monkeypatch.setitem(VERBS, "greet", "made_up_verb")
    return module


def test_every_verb_in_the_list_is_a_verb() -> None:
    assert {name: verb.__name__ for name, verb in MODULES.items()} == VERBS  # type: ignore[attr-defined]  # modules


def test_a_verb_in_the_list_is_parsed_run_and_helped(made_up: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["greet", "--whom", "you", "--", "--lr", "0.1"]) == 0
    assert capsys.readouterr().out == "hello you, ['--lr', '0.1']\n"
    assert main(["--help"]) == 0
    assert "say hello" in capsys.readouterr().out
    assert main(["greet", "--help"]) == 0
    assert "who is greeted" in capsys.readouterr().out


def test_its_errors_are_reported_like_those_of_any_verb(
    made_up: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["greet", "--whom", "nobody"]) == 6
    assert capsys.readouterr().err == "error: there is nobody [storage]\nhint: name somebody\n"
    assert main(["greet", "--loudly"]) == 2
    assert "autotune greet train.py -- --loudly" in capsys.readouterr().err
    assert main(["greeet"]) == 2
    assert "did you mean greet?" in capsys.readouterr().err


def test_a_verb_without_a_script_takes_nothing_after_the_dashes(
    made_up: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(made_up, "TAKES_SCRIPT_ARGUMENTS", False)
    assert main(["greet", "--", "x"]) == 2
    assert "takes nothing after --" in capsys.readouterr().err
    assert main(["greet", "--loudly"]) == 2
    assert "see: autotune greet --help" in capsys.readouterr().err


def test_a_home_folder_behind_an_equals_sign_is_expanded(
    made_up: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shells do so at the beginning of a word only: ``--study=~/studies`` made a folder ``~`` here."""
    monkeypatch.setenv("HOME", "/home/me")
    assert main(["greet", "--whom=~/you", "--", "--whom=~/me"]) == 0
    assert capsys.readouterr().out == "hello /home/me/you, ['--whom=~/me']\n"
    assert main(["greet", "--whom=~you"]) == 0
    assert capsys.readouterr().out == "hello ~you, None\n"
    assert main(["greet", "--whom=name=~/you"]) == 0  # as --set=path=~/data, which an argument of the script's is
    assert capsys.readouterr().out == "hello name=~/you, None\n"


def test_a_dry_run_does_nothing_to_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "\x1b[2Jtrain.py").write_text("")
    assert main(["study", "\x1b[2Jtrain.py", "--device", "cpu", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "script          ?[2Jtrain.py\n" in said and "\x1b" not in said
