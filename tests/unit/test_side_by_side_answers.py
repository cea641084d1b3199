"""Side by side: an alternative's answer is applied as it says, in its minutes, and what is edited is the example."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import side_by_side
from side_by_side_answers import (
    ALTERNATIVES,
    EDITED,
    Answer,
    Ran,
    Task,
    answers_of,
    by_hand,
    checklists,
    differing,
    edited,
    environment_of,
    ours,
    read_answer,
    run_for,
    tf_data_autotune,
)
from side_by_side_duets import changes_of, check, measuring
from support import worlds

from tuner.analysis.tiers import Tiers
from tuner.errors import UsageError
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Device
from tuner.runner.replay import ReplayRunner

CPU = Device("cpu", 0, "a processor", "a processor", 2**34)
TORCH = Knowledge(
    framework="torch", precisions=("fp32", "bf16"), optimizer_choices=("foreach", "fused"),
    as_written={"num_workers": 0, "batch_size": 64, "precision": "fp32", "channels_last": False, "compile": "off",
                "persistent_workers": False, "optimizer": "for-loop", "lr_scale": 1.0, "grad_accumulation": 1},
)  # fmt: skip


def task(folder: Path, **changes: Any) -> Task:
    known = Task("studies/digits", Path("studies/digits/train.py"), folder, 1.0, TORCH, CPU, 2)
    return replace(known, **changes)


def test_an_answer_is_the_config_that_differs_and_nothing_is_added_to_it() -> None:
    said: dict[str, Any] = {"batch_size": 1024, "num_workers": 0, "precision": "fp32", "threads": 2}
    assert differing(said, TORCH) == Config(batch_size=1024, threads=2), "no learning rate follows it"
    ran = Ran('answer: {"config": {}}\nanswer: {"config": {"batch_size": 128}, "attempts": 4, "failures": 1}\n', 9.0, 0)
    assert read_answer("a", ran, TORCH) == Answer("a", Config(batch_size=128), 9.0, 4, 1)
    late = read_answer("a", replace(ran, status=None), TORCH)
    assert late.config == Config(batch_size=128) and late.said == "its time was up"
    few = replace(TORCH, dataset_len=100)
    whole = read_answer("a", ran, few)
    assert whole.config == Config(batch_size=100) and "a batch of 128, which is all 100 samples" in whole.said
    assert read_answer("a", ran, replace(few, dataset_len=128)).config == Config(batch_size=128)
    broken = read_answer("a", Ran("Traceback", 1.0, 1), TORCH)
    assert broken.config == BASELINE and broken.failures == 1 and "status 1" in broken.said


def test_what_an_answer_changes_is_told_by_what_it_sets() -> None:
    tiers = Tiers({"precision": 2, "batch_size": 3, "lr_scale": 3, "input": 3}, TORCH)

    def told(**config: Any) -> str:
        return changes_of(config, tiers, TORCH)

    assert told(num_workers=2, channels_last=True) == ""
    assert told(num_workers=2, precision="bf16") == "numerics: precision"
    assert told(batch_size=1024) == "effective batch x16; learning rate as written"
    assert told(batch_size=1024, lr_scale=4.0) == "effective batch x16; learning rate x4"
    assert told(batch_size=16, grad_accumulation=4) == "numerics: batch_size, grad_accumulation"
    assert told(input="tfdata") == "input=tfdata"


def test_the_checklist_holds_what_is_fixed_in_advance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("side_by_side_answers._computes_in_bf16", lambda: True)
    whole, exact = checklists(task(tmp_path))
    kept = {"num_workers": 2, "persistent_workers": True, "channels_last": True}
    assert exact.config == Config(kept) and exact.seconds == exact.attempts == 0
    assert whole.config == Config({**kept, "optimizer": "fused", "compile": "default", "precision": "bf16"})
    monkeypatch.setattr("side_by_side_answers._computes_in_bf16", lambda: False)
    left_out = replace(TORCH, left_out={"compile": "its step can't be"})
    whole, _ = checklists(task(tmp_path, knowledge=left_out))
    assert "precision" not in whole.config and "compile" not in whole.config
    assert whole.said == "not to be said as a config: compile (its step can't be)"
    assert checklists(task(tmp_path, device=replace(CPU, kind="cuda")))[0].config["precision"] == "bf16"


def test_autotune_of_tf_data_is_set_where_there_is_a_pipeline(tmp_path: Path) -> None:
    arrays = Knowledge(framework="keras", as_written={"batch_size": 64, "run_eagerly": False})
    assert tf_data_autotune(task(tmp_path, knowledge=arrays))[0].config == BASELINE, "Keras does it by itself"
    piped = replace(arrays, as_written={"parallel_calls": "none", "prefetch": "none"})
    assert tf_data_autotune(task(tmp_path, knowledge=piped))[0].config == Config(parallel_calls="auto", prefetch="auto")
    eager = replace(arrays, as_written={"run_eagerly": True})
    rewritten = task(tmp_path, knowledge=eager, arguments={"input": ("generator", "tfdata")})
    assert tf_data_autotune(rewritten)[0].config == Config(
        input="tfdata", parallel_calls="auto", prefetch="auto", run_eagerly=False
    )
    assert "torch" in tf_data_autotune(task(tmp_path))[0].missing
    assert by_hand("a", {"cache": True}, task(tmp_path)).config == BASELINE


def test_who_needs_an_edited_script_says_so_where_there_is_none(tmp_path: Path) -> None:
    find = edited("finder", "lightning_finder.py", framework="torch", needs="a_package_that_nobody_has")
    assert "for torch" in find(task(tmp_path, knowledge=Knowledge(framework="keras")))[0].missing
    assert "isn't installed" in find(task(tmp_path))[0].missing
    others = tmp_path / "digits" / "train.py"
    assert "an edited script" in find(task(tmp_path, path=others))[0].missing, "of the same name, and another one"
    with pytest.raises(UsageError, match="nobody"):
        answers_of("nobody", task(tmp_path))


@pytest.mark.timed
def test_time_is_up_when_it_is_and_nothing_is_left_behind(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print('answer: {\"config\": {}, \"attempts\": 1, \"failures\": 0}', child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    started = time.monotonic()
    ran = run_for([sys.executable, "-c", program], 1.5, tmp_path / "a.log")
    assert ran.status is None and 1.4 < ran.seconds < 10 and time.monotonic() - started < 20
    child = int(ran.output.split()[-1])
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]:
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"{child} is still there")


def test_who_is_asked_sees_the_device_that_is_compared_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a study of the processor the edited scripts trained on a card, where there was one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    code = "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    card = replace(CPU, kind="cuda", index=1, uuid="GPU-made-up")
    for device, seen in ((CPU, "''"), (card, "'GPU-made-up'")):
        environment = environment_of(task(tmp_path, device=device))
        ran = run_for([sys.executable, "-c", code], 30.0, tmp_path / "a.log", environment=environment)
        assert ran.output.strip() == seen


def test_memory_ends_where_it_is_said_to(tmp_path: Path) -> None:
    given = "while resource.getrlimit(resource.RLIMIT_DATA)[0] < 0: time.sleep(0.01)"
    code = f"import resource, time\n{given}\nkept = bytearray(2**31)\nprint('had it')"
    assert run_for([sys.executable, "-c", code], 30.0, tmp_path / "a.log", max_bytes=2**29).status == 1
    assert "MemoryError" in (tmp_path / "a.log").read_text()


@pytest.mark.parametrize("text", ["", "{}"])
def test_a_study_of_ours_that_comes_to_nothing_counts_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def failing(command: Any, seconds: float, log: Path, **limits: Any) -> Ran:
        if text:
            (tmp_path / "study").mkdir()
            (tmp_path / "study" / "best.json").write_text(text)
        return Ran("", 4.0, 1)

    monkeypatch.setattr("side_by_side_answers.run_for", failing)
    found = ours(task(tmp_path))
    assert [each.alternative for each in found] == ["autotune", "autotune, tier 3"]
    assert all(each.config == BASELINE and each.failures == 1 and each.said.startswith("no answer") for each in found)


def test_what_cant_be_applied_is_as_written_and_says_so(tmp_path: Path) -> None:
    def on_world() -> ReplayRunner:
        return ReplayRunner(worlds.World().outcome)

    with measuring(worlds.plan(tmp_path / "duets"), runner=on_world) as study:
        check(study, Config(workers=2))
        line = side_by_side.checked(study, Answer("a", Config(nonsense=1), failures=1), "a")
        right = side_by_side.checked(study, Answer("a", Config(workers=2)), "a")
    assert line["config"] == {} and line["failures"] == 2 and "can't be applied" in line["said"]
    assert right["config"] == {"workers": 2} and right["said"] == "" and right["changes"] == ""


# The edited scripts


NOT_COMPARED = {"digits_ddp", "jax_digits"}
"""None of the peers' finders knows JAX, or starts several ranks."""
EXAMPLES = sorted({path.parent.name for path in EDITED.parents[2].glob("studies/*/train.py")} - NOT_COMPARED)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_has_its_parts_with_the_batch_that_it_has(name: str) -> None:
    """What is timed by hand, or searched by a finder, is what the script trains."""
    tree = ast.parse((EDITED / f"{name}.py").read_text())
    constants: dict[str, Any] = {
        target.id: node.value.value for node in tree.body if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant) for target in node.targets if isinstance(target, ast.Name)
    }  # fmt: skip
    source = (EDITED.parents[2] / "studies" / name / "train.py").read_text()
    assert f'"--batch-size", type=int, default={constants["BATCH_SIZE"]}' in source
    assert (EDITED / f"{constants['TIMED_BY']}.py").is_file()


def answered(program: str, *options: str) -> dict[str, Any]:
    """What a program answers for studies/digits."""
    study = EDITED.parents[2] / "studies" / "digits"
    done = subprocess.run(
        [sys.executable, str(EDITED / program), "digits", *options], capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(study), "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("answer: ")]
    assert done.returncode == 0 and lines, done.stderr
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("answer: "))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("program", "most"), [("lightning_finder.py", 2048), ("accelerate_finder.py", 1024)])
def test_a_finder_answers_with_what_fits_up_to_an_epoch(program: str, most: int) -> None:
    """An epoch has 1,437 samples: Lightning's goes to the doubling beyond, accelerate's begins with the one below."""
    assert answered(program)["config"] == {"batch_size": most}


@pytest.mark.slow
def test_a_setting_is_timed_as_it_says() -> None:
    """In a process of its own; the last word that it prints is the rate."""
    setting = {"batch_size": 64, "num_workers": 1, "threads": 1, "precision": "bf16", "channels_last": True,
               "optimizer": "foreach", "compile": "off"}  # fmt: skip
    study = EDITED.parents[2] / "studies" / "digits"
    done = subprocess.run(
        [sys.executable, str(EDITED / "optuna_by_hand.py"), "digits", "--trial", json.dumps(setting)],
        capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(study)}, check=True,
    )  # fmt: skip
    assert float(done.stdout.split()[-1]) > 10


def test_the_names_are_those_of_the_table() -> None:
    assert next(iter(ALTERNATIVES)) == "autotune"
