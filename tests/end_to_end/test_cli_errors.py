"""The real command with everything that can be wrong: one error line, a hint, the documented status, nothing made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tuner import errors
from tuner.cli import main

AUTOTUNE = Path(sys.executable).with_name("autotune")
REFERENCE = Path(__file__).parents[2] / "tuner" / "cli" / "README.md"
PROFILE = {
    "device": {
        "kind": "cuda", "index": 0, "name": "Imaginary GPU", "uuid": "GPU-0", "memory_bytes": 1, "label": "cuda:0",
    },
    "config": {}, "verdict": "keep-baseline", "speedup": None, "environment": {},
    "script": {"path": "train.py", "module": "", "sha256": "", "argv": []},
}  # fmt: skip
MEASURED = {
    "rate": "fast", "low": 1.0, "high": 2.0, "unit": "samples", "based_on": "finals", "peak_host_bytes": 1,
}  # fmt: skip
FILES = {
    "train.py": "print('never started')\n",
    "train.ipynb": '{"cells": []}',
    "train.sh": "python train.py\n",
    "space.py": "SPACE = 3\n",
    "broken_space.py": "import nosuchpackage\n",
    "typo/train.py": "",
    "typo/study.toml": '[study]\nscript = "train.py"\nbugdet = "5m"\n',
    "value/study.toml": '[study]\nscript = "train.py"\nbudget = "soon"\n',
    "torn/study.toml": '[study]\nscript = "train.py\n',
    "nameless/study.toml": '[study]\nbudget = "5m"\n',
    "lost/study.toml": '[study]\nscript = "gone.py"\n',
    "deep/study.toml": f"x = {'[' * 5000}{']' * 5000}\n",
    "nul/study.toml": '[study]\nscript = "train.py"\nargs = ["a\\u0000b"]\n',
    "nul/train.py": "",
    "deepspeed/study.toml": '[study]\nscript = "train.py"\n',
    "no.json": "{",
    "newer.json": '{"schema": 99, "profiles": []}',
    "empty.json": '{"schema": 1, "profiles": []}',
    "hollow.json": '{"schema": 1, "profiles": [{}]}',
    "other.json": json.dumps({"schema": 1, "profiles": [PROFILE]}),
    "wrong.json": json.dumps({"schema": 1, "profiles": [{**PROFILE, "baseline": MEASURED}]}),
    "price.toml": "[price]\nA = 1\n",
    "free.toml": "[prices]\nA = 'nothing'\n",
}


@dataclass(frozen=True)
class Wrong:
    """A command line, and what is to be said of it."""

    line: str
    slug: str
    says: str
    hint: str
    code: int = 2
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Tells the cases apart."""
        return " ".join([*(f"{name}={value}" for name, value in self.environment.items()), "autotune", self.line])


CASES = (
    Wrong("", "usage", "no verb given", "the verbs are: study, "),
    Wrong("stduy train.py", "usage", "there is no verb 'stduy'", "did you mean study?"),
    Wrong("train.py", "usage", "there is no verb 'train.py'", "autotune study train.py"),
    Wrong("study", "usage", "no script given", "autotune study train.py"),
    Wrong("study gone.py", "script-not-found", "there is no script gone.py", "current folder"),
    Wrong("study train", "script-not-found", "there is no script train", "did you mean train.py?"),
    Wrong("study train.ipynb --dry-run", "usage", "train.ipynb is a notebook", "nbconvert --to script train.ipynb"),
    Wrong("probe train.sh", "usage", "train.sh is a shell script", "the Python script that it starts"),
    Wrong("study --module nosuch.train", "script-not-found", "nosuch.train", "nosuch"),
    Wrong("study train.py --module json", "usage", "both a script", "one of them"),
    Wrong("study train.py --device cuda:99", "device", "cuda:99", "devices here:", 4),
    Wrong("study train.py --device tpu", "device", "there is no tpu on this machine", "devices here:", 4),
    Wrong("study train.py --device gpu", "device", "unknown device 'gpu'", "auto, cpu, cuda", 4),
    Wrong("study train.py --knobs nosuch", "unknown-knob", "unknown knob 'nosuch'", "batch_size"),
    Wrong("study train.py --knobs -nosuch", "unknown-knob", "unknown knob 'nosuch'", "batch_size"),
    Wrong("study train.py --set nosuch=1", "unknown-knob", "unknown knob 'nosuch'", "batch_size"),
    Wrong("study train.py --metric f1=([", "usage", "'([' is not a regular expression", ""),
    Wrong("study train.py --metric f1=f1", "usage", "no limit is set for 'f1'", "--max-metric-drop f1=0.5%"),
    Wrong("study train.py --max-metric-rise loss", "usage", "'loss' is not NAME=VALUE", "--max-metric-rise"),
    Wrong("study train.py --set batch_size=abc", "usage", "batch_size=abc", "samples"),
    Wrong("study train.py --max-memory 20", "usage", "'20'", "20GiB"),
    Wrong("study train.py --set batch_size", "usage", "--set: 'batch_size' is not ", "num_workers=4"),
    Wrong("study train.py --set lr=1 --set lr=2", "usage", "--set: lr is given twice, and otherwise: 2", "once"),
    Wrong("study train.py --budget 5x", "usage", "--budget: invalid duration '5x'", "30m"),
    Wrong("study train.py --trial-timeout 0", "usage", "--trial-timeout: invalid duration '0'", "30m"),
    Wrong("study train.py --max-memory 20QB", "usage", "--max-memory: invalid size '20QB'", "20GiB"),
    Wrong("study train.py --trials none", "usage", "--trials: expected a whole number, at least 1, unlike 'none'", ""),
    Wrong("study train.py --seed -1", "usage", "--seed: expected a whole number", ""),
    Wrong("study train.py --without loder", "usage", "--without: there is no watch 'loder'", "loader, modules"),
    Wrong("study train.py --effective-batch lose", "usage", "--effective-batch: expected both, keep or free", ""),
    Wrong("study train.py --space nosuch", "search-space", "no search space 'nosuch'", "torch"),
    Wrong("study train.py --space ./gone.py", "search-space", "there is no file gone.py", "current folder"),
    Wrong("study train.py --space ./space.py", "search-space", "declares a int", "SearchSpace"),
    Wrong("study train.py --space ./broken_space.py", "search-space", "No module named 'nosuchpackage'", "import"),
    Wrong("study train.py --objective nosuch", "objective", "no objective 'nosuch'", "throughput"),
    Wrong("study train.py --hub-token s3cret", "usage", "unrecognized arguments: --hub-token (hidden)",
          "study train.py -- --hub-token (hidden)"),
    Wrong("study --lr 0.1 train.py", "usage", "unrecognized arguments: --lr train.py", "study train.py -- --lr 0.1"),
    Wrong("study --trials 5 --lr 5 train.py", "usage", "unrecognized arguments: --lr train.py",
          "study train.py -- --lr 5"),
    Wrong("study train.py --lr 0.1", "usage", "unrecognized arguments: --lr 0.1", "study train.py -- --lr 0.1"),
    Wrong("study train.py --bugdet 3m", "usage", "unrecognized arguments: --bugdet 3m", "did you mean --budget? "),
    Wrong("trials --jason", "usage", "unrecognized arguments: --jason", "did you mean --json? see: "),
    Wrong("study python train.py", "usage", "unrecognized arguments: train.py",
          "python is the interpreter, not a script: autotune study train.py"),
    Wrong("study python3 -u train.py --lr 3", "usage", "unrecognized arguments: -u train.py --lr 3",
          "python3 is the interpreter, not a script: autotune study train.py -- --lr 3"),
    Wrong("study python -m train", "usage", "python is the interpreter", "leave it out: autotune study --module train"),
    Wrong("study torchrun --nproc-per-node 2 train.py --lr 3", "usage", "torchrun starts several processes",
          "autotune study train.py -- its arguments; --ranks N"),
    Wrong("probe accelerate launch train.py", "usage", "accelerate starts several processes", "--ranks N"),
    Wrong("study deepspeed --buget 5m", "usage", "unrecognized arguments: --buget", "did you mean --budget"),
    Wrong("run --config other.json torchrun --nproc-per-node 2 train.py", "usage", "torchrun starts several processes",
          "torchrun --nproc-per-node 2 --no-python autotune run"),
    Wrong("study train.py --study train.py", "storage", "train.py is not a folder", "--study DIR", 6),
    Wrong("study torchrun -- train.py", "usage", "torchrun starts several processes", "autotune study train.py"),
    Wrong("study train.py --ranks 0 --device cpu", "usage", "--ranks: expected a whole number", ""),
    Wrong("study train.py --ranks 4096 --device cpu", "usage", "--ranks 4096: there are", "--ranks "),
    Wrong("record train.py --ranks 4096 --device cpu --out g.gz", "usage", "--ranks 4096: there are", "--ranks "),
    Wrong("probe train.py --ranks 4096 --device cpu", "usage", "--ranks 4096: there are", "--ranks "),
    Wrong("study train.py", "usage", "WORLD_SIZE is 2", "not under a launcher", environment={"WORLD_SIZE": "2"}),
    Wrong("study train.py -- --x={nosuch}", "unknown-knob", "{nosuch} in the script's arg", "{nosuch=1|2|4}"),
    Wrong("study typo", "usage", "unknown key 'bugdet'", "did you mean 'budget'?"),
    Wrong("study value", "usage", "study.toml: budget = 'soon'", "30m"),
    Wrong("study torn", "usage", "can't read torn/study.toml", ""),
    Wrong("study nameless", "usage", "nameless/study.toml names no script", "[study]"),
    Wrong("study lost", "script-not-found", "there is no script lost/gone.py", ""),
    Wrong("study deep", "usage", "can't read deep/study.toml", "[study] table"),
    Wrong("study nul --dry-run", "usage", "nul/study.toml: args = ['a\\x00b']: a NUL", ""),
    Wrong("run train.py", "usage", "--config", "autotune run --help"),
    Wrong("run --config no.json --tier 4 train.py", "usage", "--tier 4: expected 2 or 3", "the larger one beside it"),
    Wrong("run --config gone.json train.py", "profile", "can't read gone.json", "best.json"),
    Wrong("run --config no.json --device cpu train.py", "profile", "no.json is not a best.json", "autotune study"),
    Wrong("run --config newer.json --device cpu train.py", "profile", "has schema 99", "upgrade"),
    Wrong("run --config empty.json --device cpu train.py", "profile", "no profile for cpu", "autotune study"),
    Wrong("run --config hollow.json --device cpu train.py", "profile", "profiles[0]", "again"),
    Wrong("run --config other.json --device cpu train.py", "profile", "it has: cuda:0 (Imaginary GPU)", "autotune"),
    Wrong("run --config other.json train.py --lr 1", "usage", "arguments: --lr 1",
          "run --config other.json train.py -- --lr 1"),
    Wrong("record train.py --lr 1 --out a g.gz", "usage", "arguments: --lr", "record --out a train.py -- --lr"),
    Wrong(
        "run --config other.json --device cuda:1", "usage", "WORLD_SIZE is 2: each rank takes the card",
        "write --device cuda;", environment={"WORLD_SIZE": "2"},
    ),
    Wrong("record train.py", "usage", "--out", "autotune record --help"),
    Wrong("record train.py --out g.gz --configs some", "usage", "--configs: 'some'", "a whole number"),
    Wrong("record train.py --out g.gz --values threads", "usage", "'threads' is not KNOB=A,B", "num_workers=0,1,2"),
    Wrong("record train.py --out g.gz --values wrokers=1", "unknown-knob", "'wrokers'", "num_workers"),
    Wrong("record train.py --out g.gz --window soon", "usage", "--window: ", "30m"),
    Wrong("record train.py --out gone/g.gz", "storage", "there is no folder gone", "--out", 6),
    Wrong("record train.py --out typo", "storage", "typo is a folder", "--out grid.jsonl.gz", 6),
    Wrong("trials", "storage", "there is no study in .", "autotune studies", 6),
    Wrong("trials gone", "storage", "there is no folder gone", "", 6),
    Wrong("trials --check --json", "usage", "--check prints no JSON", "leave out one"),
    Wrong("trials --check --waterfall", "usage", "--check shows no waterfall", "leave out one"),
    Wrong("merge best.json --out gone/fleet.json", "storage", "there is no folder gone", "--out", 6),
    Wrong("trials --waterfall --svg gone/w.svg", "usage", "--svg gone/w.svg: there is no folder gone", "make it, or"),
    Wrong("trials --waterfall --svg typo", "usage", "--svg typo is a folder", "--svg typo/waterfall.svg"),
    Wrong("trials --svg a.svg", "usage", "--svg draws the waterfall", "--waterfall --svg FILE"),
    Wrong("trials --waterfall --svg gone/a.svg", "usage", "there is no folder gone", ""),
    Wrong("studies gone", "storage", "there is no folder gone", "", 6),
    Wrong("compare", "usage", "best.json", "autotune compare --help"),
    Wrong("compare gone.json", "profile", "can't read gone.json", "autotune study"),
    Wrong("compare no.json", "profile", "no.json is not a best.json", "autotune study"),
    Wrong("compare other.json newer.json", "profile", "newer.json has schema 99", "upgrade"),
    Wrong("compare hollow.json", "profile", "hollow.json: profiles[0]", "again"),
    Wrong("compare wrong.json", "profile", "baseline.rate is 'fast', not a number", "again"),
    Wrong("compare empty.json", "profile", "no profile in empty.json", "autotune study"),
    Wrong("compare other.json --prices gone.toml", "usage", "can't read gone.toml", "[prices]"),
    Wrong("compare other.json --prices train.py", "usage", "can't read train.py", "[prices]"),
    Wrong("compare other.json --prices typo/study.toml", "usage", "has no [prices] table", "NVIDIA H200"),
    Wrong("compare other.json --prices price.toml", "usage", "unknown table 'price'", "did you mean [prices]?"),
    Wrong("compare other.json --prices free.toml", "usage", "the price of 'A' is 'nothing'", "currency per hour"),
    Wrong("compare other.json -- x", "usage", "takes nothing after --", ""),
    Wrong("devices -- x", "usage", "takes nothing after --", ""),
)


def tree(folder: Path) -> set[str]:
    """All that lies below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("wrong", CASES, ids=lambda wrong: wrong.name)
def test_one_error_a_hint_and_the_documented_status(
    place: Path, wrong: Wrong, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    for name, value in wrong.environment.items():
        monkeypatch.setenv(name, value)
    before = tree(place)
    code = main(wrong.line.split())
    said = capsys.readouterr()
    assert tree(place) == before, "something was made"
    check(wrong, code, said.out, said.err)


@pytest.mark.parametrize(
    "wrong",
    [pytest.param(wrong, marks=[pytest.mark.slow] if number % 2 else []) for number, wrong in enumerate(CASES[::22])],
    ids=lambda wrong: wrong.name,
)
def test_the_command_itself_says_and_returns_the_same(place: Path, wrong: Wrong) -> None:
    command, environment = [str(AUTOTUNE), *wrong.line.split()], {**os.environ, **wrong.environment}
    answer = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    check(wrong, answer.returncode, answer.stdout, answer.stderr)


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.parametrize("redirected", [">/dev/full", pytest.param("2>/dev/full", marks=pytest.mark.slow)])
@pytest.mark.parametrize("printing", ["devices --json", "study --help", "--version"])
def test_what_cannot_be_printed_is_no_bug_of_autotune(place: Path, redirected: str, printing: str) -> None:
    """A disk that is full: of standard output it is said, and of standard error the exit status tells."""
    words = f'"$0" {printing if redirected[0] == ">" else "trials gone"} {redirected}'
    answer = subprocess.run(
        ["sh", "-c", words, str(AUTOTUNE)], cwd=place, capture_output=True, text=True, timeout=120, check=False
    )
    assert answer.returncode == errors.ExitCode.STORAGE, answer.stderr
    said = "error: a disk is full: No space left on device [storage]\n" if redirected[0] == ">" else ""
    assert answer.stderr.startswith(said) and "bug" not in answer.stderr


@pytest.mark.slow  # 2 s beside three others
def test_what_standard_output_has_no_letters_for_is_no_bug_of_autotune(place: Path) -> None:
    """As in a locale of Latin-1 or ASCII: a study ended before its first trial."""
    (place / "caf\u00e9 \u2713.py").write_text("", encoding="utf-8")
    answer = subprocess.run(
        [str(AUTOTUNE), "study", "caf\u00e9 \u2713.py", "--dry-run"], cwd=place, capture_output=True, timeout=120,
        env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert b"caf\\xe9 \\u2713.py" in answer.stdout


@pytest.mark.parametrize("line", ["study --module train --dry-run", "record --module train --out g.gz"])
def test_a_current_folder_that_was_removed_is_no_bug_of_autotune(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    code = main(line.split())
    wrong = Wrong(line, "storage", "the current folder was removed", "cd to a folder that is there", 6)
    check(wrong, code, *capsys.readouterr())


def check(wrong: Wrong, code: int, output: str, errors_text: str) -> None:
    """One error line, at most one hint, nothing else."""
    assert output == ""
    error, *rest = errors_text.splitlines()
    assert error.startswith("error: ") and error.endswith(f" [{wrong.slug}]"), errors_text
    assert wrong.says in error
    assert len(rest) <= 1 and all(line.startswith("hint: ") for line in rest), errors_text
    assert wrong.hint in "".join(rest)
    assert code == wrong.code


def test_the_reference_lists_every_slug_and_status() -> None:
    """A program that reads our errors relies on the list."""
    reference = REFERENCE.read_text(encoding="utf-8")
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.AutotuneError)]
    for kind in kinds:
        if kind is not errors.AutotuneError:
            assert f"| `{kind.slug}` | {int(kind.exit_code)} |" in reference, kind.slug
