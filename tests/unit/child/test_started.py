"""Which commands may train, told by their words; what a shell would make of them is not asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tuner.child.patches import unpatch_all
from tuner.child.started import StartedProcesses, trainer_in


@pytest.mark.parametrize(
    ("command", "trainer"),
    [
        ("for seed in 1 2; do python train.py --seed $seed; done", "python"),
        ("for seed in 1 2\ndo\n  CUDA=0 python train.py\ndone", "python"),
        ("if true; then python train.py; fi", "python"), ("if python train.py; then uname; fi", "python"),
        ("if false; then ls; elif true; then ls; else ./fit; fi", "fit"), ("! python train.py", "python"),
        ("while read name; do python train.py $name; done < names", "python"), ("{ python train.py; }", "python"),
        (". ./train.sh", "train.sh"), ("source train.sh", "train.sh"), (". ./launch", "launch"),
        ("(ls)&&python train.py", "python"), ("mkdir -p out;(python train.py)", "python"),
        ("(ls;python train.py);uname", "python"), ("tee log < <(python train.py)", "python"),
        ("find . -exec python train.py {} \\;", "python"), (["find", ".", "-execdir", "./fit", "{}", "+"], "fit"),
        ('best="$(python train.py)"; echo "$best"', "python"), ('A=1 B="`./fit`"', "fit"),
        ('echo "$(python train.py)"', "python"), ("echo `./fit 3`", "fit"), ('echo "$(cat $(./fit))"', "fit"),
    ],
)  # fmt: skip
def test_what_trains_is_found_in_a_command_of_a_shell(command: object, trainer: str) -> None:
    assert trainer_in(command) == trainer


@pytest.mark.parametrize(
    "command",
    [
        "for each in 1 2; do echo $each; done", "if [ -d x ]; then ls; else mkdir x; fi", "[ -d x ] || mkdir x",
        "[[ -d x ]]&&ls", "(uname)&&(ls;pwd)>log", "uname &>log; ls 2>&1", "find . -name '*.pt' -exec rm {} +",
        "find . -name train", 'echo "$(uname) $(nproc)"', "{ ls; }", ". venv/bin/activate",
        "while true; do break; done", 'here="$(pwd)"; cores="`nproc`" ls',
        "case $1 in a) ls;; esac", "",
    ],
)  # fmt: skip
def test_what_trains_nothing_is_no_trainer(command: str) -> None:
    assert trainer_in(command) == ""


def test_a_program_that_is_not_there_has_not_trained(tmp_path: Path) -> None:
    started = StartedProcesses()
    try:
        started.install()
        with pytest.raises(FileNotFoundError):
            os.posix_spawn(tmp_path / "fit", ["fit"], os.environ)
    finally:
        unpatch_all()
    assert started.may_train == []
