"""``autotune run`` says which knobs took effect, and what can't be had never ends the user's own training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAIN = """
    import sys
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    steps, status = int(sys.argv[1]), int(sys.argv[2])
    data = TensorDataset(torch.randn(80, 4), torch.randn(80, 1))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01)
    taken = 0
    sizes = set()
    while taken < steps:
        loader = DataLoader(data, batch_size=8, shuffle=True)
        for inputs, targets in loader:
            if taken == steps:
                break
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            taken += 1
            sizes.add(len(inputs))
    print("trained", taken, sorted(sizes))
    sys.exit(status)
"""


def said(output: str) -> list[str]:
    """Our own lines."""
    return [line for line in output.splitlines() if line.startswith("autotune: ")]


@pytest.mark.slow  # 8 s beside three others
@pytest.mark.parametrize(
    ("steps", "status", "strict"), [
        (25, 0, False),
        pytest.param(25, 0, True, marks=pytest.mark.slow),
        pytest.param(5, 0, True, marks=pytest.mark.slow),
        pytest.param(5, 3, True, marks=pytest.mark.slow),
    ],
)
def test_it_tells_once_what_took_effect_and_what_did_not(
    write_script: Callable[..., Path], run_child: Callable[..., Any], steps: int, status: int, strict: bool
) -> None:
    script = write_script(TRAIN.replace("{optimizer}", "Rprop"))
    config = {"batch_size": 4, "optimizer": "fused", "precision": "bf16"}
    run = run_child(script, config, argv=(str(steps), str(status)), mode="apply", strict=strict)
    assert run.returncode == (status or (7 if strict else 0)), run.output
    [line] = said(run.output)
    assert line == (
        f"autotune: after {min(steps, 20)} steps in effect: batch_size, precision;"
        " NOT in effect: optimizer (Rprop has no fused implementation)"
    )
    ended_early = strict and steps > 20
    assert (f"trained {steps} [4]" in run.output) is not ended_early


def test_a_strict_run_in_which_all_is_in_effect_is_left_alone(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    script = write_script(TRAIN.replace("{optimizer}", "SGD"))
    # Of 80 samples ten batches of eight: the loader is made anew twice, and keeps its knob.
    run = run_child(script, {"batch_size": 4, "optimizer": "foreach"}, argv=("50", "0"), mode="apply", strict=True)
    assert run.returncode == 0, run.output
    assert said(run.output) == ["autotune: after 20 steps in effect: batch_size, optimizer"]
    assert "trained 50 [4]" in run.output


def test_as_written_there_is_nothing_to_tell(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    run = run_child(write_script(TRAIN.replace("{optimizer}", "SGD")), argv=("3", "0"), mode="apply", strict=True)
    assert run.returncode == 0 and said(run.output) == []


OPTION = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument({argument})
    parser.add_argument("--checkpoint", default="good.pt")
    options = parser.parse_args()
    print("got", options)
"""


@pytest.mark.parametrize(
    ("argument", "destination", "effect"),
    [
        ("'--batch-size', type=int, default=8", "batch_size", True),
        pytest.param("'--batch-size', default='a.pt'", "batch_size", False, marks=pytest.mark.slow),
        ("'--size', type=int, default=8", "checkpoint", False),
    ],
)
def test_a_profile_sets_no_option_but_a_knobs_own(
    write_script: Callable[..., Path], run_child: Callable[..., Any], argument: str, destination: str, effect: bool
) -> None:
    script = write_script(OPTION.replace("{argument}", argument))
    run = run_child(script, {"batch_size": 4}, knowledge={"options": {"batch_size": destination}}, mode="apply")
    assert "checkpoint='good.pt'" in run.output
    assert ("batch_size=4" in run.output) is effect
    assert (said(run.output)[0] == "autotune: at the script's end in effect: batch_size") is effect


LOADERS = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from parts.data import make

    def main():
        train, val = make(48), make(24)
        training = DataLoader(train, batch_size=8)
        held_out = DataLoader(val, batch_size=8)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for epoch in range(2):
            for inputs, targets in training:
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(inputs), targets).backward()
                optimizer.step()
            with torch.no_grad():
                held = {len(model(inputs)) for inputs, targets in held_out}
        print("sizes", len(inputs), len(targets), held)

    main()
"""
DATA = """
    import torch
    from torch.utils.data import TensorDataset

    def make(rows):
        return TensorDataset(torch.randn(rows, 4), torch.randn(rows, 1))
"""
# Lines move, a number is edited, a layout is changed, and another loader is made first.
EDITED = (
    ("    def main():", "    # one more line\n\n    def main():\n        first = DataLoader(make(8))"),
    ("batch_size=8)\n        held", "batch_size = 16\n        )\n        held"),
)


def test_knobs_find_their_loader_again_where_lines_have_moved(
    write_script: Callable[..., Path], run_child: Callable[..., Any], tmp_path: Path
) -> None:
    helper = write_script(DATA, "parts/data.py")
    learned = run_child(write_script(LOADERS)).facts
    assert len(learned["training_loaders"]) == 1
    assert learned["module_hashes"] == {"parts/data.py": hashlib.sha256(helper.read_bytes()).hexdigest()}
    edited = LOADERS
    for before, after in EDITED:
        assert before in edited
        edited = edited.replace(before, after, 1)
    script = write_script(edited)
    knowledge = {"training_loaders": learned["training_loaders"]}
    run = run_child(script, {"batch_size": 4}, knowledge=knowledge, mode="apply")
    assert said(run.output) == ["autotune: after 20 steps in effect: batch_size"], run.output
    assert "sizes 4 4 {8}" in run.output, "the loader that trains, and no other"
    reworded = edited.replace("DataLoader(train, ", "DataLoader(train, drop_last=True, ")
    run = run_child(write_script(reworded), {"batch_size": 4}, knowledge=knowledge, mode="apply")
    assert "sizes 16 16 {8}" in run.output, "what says something else may be something else"
    [line] = said(run.output)
    assert "NOT in effect: batch_size (the DataLoader that trained in the study isn't made any more)" in line


@pytest.mark.slow
def test_a_profile_that_knows_loaders_by_their_lines_is_still_understood(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    write_script(DATA, "parts/data.py")
    lines = [text.strip() for text in LOADERS.strip("\n").splitlines()]
    made = next(i for i, text in enumerate(lines, 1) if text.startswith("training = "))
    called = next(i for i, text in enumerate(lines, 1) if text == "main()")
    key = f"train.py:{made + 1}<train.py:{called + 1}#0"  # the text begins with an empty line
    run = run_child(write_script(LOADERS), {"batch_size": 4}, knowledge={"training_loaders": [key]}, mode="apply")
    assert "sizes 4 4 {8}" in run.output


COMPILED = """
    import os, sys
    made = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    sys.path += [made, sys.path[0] + "/parts"]
    import kernel, tuner, own
    import torch
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_only_sources_of_the_users_are_hashed(
    write_script: Callable[..., Path], run_child: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = write_script("x = 1\n", "study/compile-cache/kernel.py").parent
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(made))
    write_script("y = 1\n", "parts/own.py")
    script = write_script(COMPILED)
    assert list(run_child(script).facts["module_hashes"]) == ["parts/own.py"]
    assert run_child(script, {"threads": 1}).facts["module_hashes"] == {}, "the baseline's alone are kept"


RESUMED = """
    import sys
    import torch

    rate, begin, end, load, save = sys.argv[1:]
    schedules = torch.optim.lr_scheduler
    MAKE = {
        "step": lambda optimizer: schedules.StepLR(optimizer, 3),
        "cosine": lambda optimizer: schedules.CosineAnnealingLR(optimizer, 20),
        "lambda": lambda optimizer: schedules.LambdaLR(optimizer, lambda step: 0.9 ** step),
        "none": lambda optimizer: None,
    }
    for how, make in MAKE.items():
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=float(rate))
        scheduler = make(optimizer)
        if load != "-":
            state = torch.load(f"{load}.{how}", weights_only=True)
            optimizer.load_state_dict(state["optimizer"])
            if scheduler is not None:
                scheduler.load_state_dict(state["scheduler"])
        for step in range(int(begin), int(end)):
            if step == 4 and save != "-":
                kept = scheduler.state_dict() if scheduler is not None else None
                torch.save({"optimizer": optimizer.state_dict(), "scheduler": kept}, f"{save}.{how}")
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            group = optimizer.param_groups[0]
            print("rate", how, step, group["lr"], group["foreach"])
            if scheduler is not None:
                scheduler.step()
"""
SCALED = {"lr_scale": 0.5, "optimizer": "foreach"}


def rates(output: str) -> dict[tuple[str, int], float]:
    """Schedule and step → the learning rate then."""
    lines = [line.split() for line in output.splitlines() if line.startswith("rate ")]
    return {(how, int(step)): float(rate) for _, how, step, rate, _ in lines}


@pytest.mark.slow
def test_knobs_survive_a_checkpoint_whoever_saved_it(
    write_script: Callable[..., Path], run_child: Callable[..., Any], tmp_path: Path
) -> None:
    """Resumed from the plain script's checkpoint or from a run's own, the rates are those of a run without a stop."""
    script = write_script(RESUMED)
    plain, own = str(tmp_path / "plain"), str(tmp_path / "own")

    def run(begin: int, load: str, save: str, config: dict[str, Any]) -> dict[tuple[str, int], float]:
        done = run_child(script, config, argv=("0.1", str(begin), "8", load, save), mode="apply")
        assert done.returncode == 0 and "NOT in effect" not in done.output, done.output
        used = {line.split()[-1] for line in done.output.splitlines() if line.startswith("rate ")}
        assert used == {"True" if config else "None"}, "the implementation is the config's in each step"
        return rates(done.output)

    as_written, whole = run(0, "-", plain, {}), run(0, "-", own, SCALED)
    assert len(whole) == 32
    assert whole == pytest.approx({at: rate / 2 for at, rate in as_written.items()})
    second_half = {at: rate for at, rate in whole.items() if at[1] >= 4}
    assert run(4, plain, "-", SCALED) == pytest.approx(second_half)
    assert run(4, own, "-", SCALED) == pytest.approx(second_half)


@pytest.mark.slow
def test_a_rate_that_nothing_is_known_of_is_kept_and_told(
    write_script: Callable[..., Path], run_child: Callable[..., Any], tmp_path: Path
) -> None:
    script, saved = write_script(RESUMED), str(tmp_path / "other")
    run_child(script, argv=("0.3", "0", "5", "-", saved), mode="apply")
    run = run_child(script, {"lr_scale": 0.5}, argv=("0.1", "4", "6", saved, "-"), mode="apply")
    assert {at[1]: rate for at, rate in rates(run.output).items() if at[0] == "none"} == {4: 0.3, 5: 0.3}
    assert "NOT in effect: lr_scale (the checkpoint's rates are neither" in run.output


KERAS = """
    import json
    import os
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras
    import numpy

    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    history = model.fit(numpy.ones((64, 3)), numpy.ones((64, 1)), batch_size=8, epochs=2, verbose=0)
    print(json.dumps({"epochs": len(history.history["loss"]), "steps": int(model.optimizer.iterations)}))
"""


@pytest.mark.slow
def test_a_strategy_that_can_not_be_had_does_not_end_the_training(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """It ended the run with status 0 before the first step."""
    config = {"strategy": "tpu", "batch_size": 16, "steps_per_execution": 2}
    run = run_child(write_script(KERAS), config, mode="apply")
    assert run.returncode == 0, run.output
    [result] = [line for line in run.output.splitlines() if line.startswith("{")]
    assert json.loads(result) == {"epochs": 2, "steps": 8}
    lines = said(run.output)
    assert any(line.startswith("autotune: strategy tpu") for line in lines), lines
    assert "in effect: batch_size, steps_per_execution; NOT in effect: strategy (" in lines[-1]
