"""A script trains alike, and leaves alike, with every watch, with none, and with each one left out by itself.

What it prints holds the loss of each step in full, and digests of what it read back; what it leaves are the paths of
its files, whether they stay where the script put them or were sent to the trial's folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import campaign, courses
from support.in_process import ENDLESS

from tuner.child.watch import Watch

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]
OF_ALL = (Watch.LOSSES, Watch.ARGUMENTS, Watch.FILES)
OF_TORCH = (*OF_ALL, Watch.LOADER, Watch.MODULES, Watch.OPTIMIZER, Watch.PROCESSES, Watch.TRACKERS, Watch.TRAINERS)
OF_KERAS = (*OF_ALL, Watch.KERAS, Watch.TENSORFLOW, Watch.TF_DATA)
OF_JAX = (*OF_ALL, Watch.JAX)

TORCH = """
    import argparse, hashlib, os, random
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()
    torch.manual_seed(3)
    random.seed(3)
    x, y = torch.randn(160, 8), torch.randint(0, 3, (160,))
    workers = {"num_workers": 2} if KIND == "workers" else {}
    loader = DataLoader(TensorDataset(x, y), batch_size=options.batch_size, shuffle=True, **workers)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    generator = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    other = torch.optim.SGD(generator.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    scaler = torch.amp.GradScaler("cpu", enabled=KIND == "scaler")
    os.makedirs("out/run")
    for epoch in range(3):
        model.train()
        for step, (a, b) in enumerate(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(a), b)
            if KIND == "accumulates":
                (loss / 2).backward()
                if step % 2:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
            elif KIND == "closure":
                def closure():
                    optimizer.zero_grad()
                    loss = torch.nn.functional.cross_entropy(model(a), b)
                    loss.backward()
                    return loss
                optimizer.step(closure)
            else:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
            if KIND == "two":
                other.zero_grad()
                made = model(generator(a)).logsumexp(1).mean()
                made.backward()
                other.step()
                print("other", float(made))
            schedule.step()
            print("loss", float(loss), schedule.get_last_lr()[0])
        model.eval()
        with torch.no_grad():
            print("accuracy", float((model(x).argmax(1) == y).float().mean()))
        torch.save(model.state_dict(), "out/run/last.pt")
        read = torch.load("out/run/last.pt")
        print("read back", hashlib.sha256(b"".join(t.numpy().tobytes() for t in read.values())).hexdigest())
        with open("out/run/log.txt", "a") as file:
            file.write(f"epoch {epoch}\\n")
    print(open("out/run/log.txt").read(), sorted(os.listdir("out")))
"""
KINDS = ("plain", "workers", "accumulates", "closure", "scaler", "two")

KERAS = """
    import hashlib, os
    import keras, numpy
    import tensorflow as tf
    keras.utils.set_random_seed(3)
    tf.config.experimental.enable_op_determinism()
    chance = numpy.random.default_rng(0)
    x, y = chance.random((160, 8), dtype="float32"), chance.integers(0, 3, 160)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(160, seed=5).batch(16)
    optimizer = keras.optimizers.Adam(0.01)
    class Print(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            print("loss", float(logs["loss"]))
    if KIND == "loop":
        @tf.function
        def step(a, b):
            with tf.GradientTape() as tape:
                loss = losses(b, model(a, training=True))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss
        for epoch in range(2):
            for a, b in rows:
                print("loss", float(step(a, b)))
    elif KIND == "on_batch":
        model.compile(optimizer, losses)
        for epoch in range(2):
            for a, b in rows:
                print("loss", float(numpy.ravel(model.train_on_batch(a.numpy(), b.numpy()))[0]))
    else:
        model.compile(optimizer, losses, metrics=["accuracy"])
        given = (rows,) if KIND == "dataset" else (x, y)
        model.fit(*given, epochs=2, verbose=0, validation_data=(x, y), callbacks=[Print()])
    model.save("last.keras")
    again = keras.models.load_model("last.keras")
    print("weights", hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest())
    print("read back", hashlib.sha256(b"".join(w.tobytes() for w in again.get_weights())).hexdigest())
"""
KERAS_KINDS = ("arrays", "dataset", "loop", "on_batch")


@dataclass(frozen=True)
class Left:
    """What a run printed, and the files that it left, by their names from the script's folder on."""

    printed: str
    files: frozenset[str]


def left(folder: Path, printed: str, trial: Path | None = None) -> Left:
    """What lies in the script's folder, and below the trial's in its place."""
    places = [folder, *([trial / "files" / str(folder).lstrip("/")] if trial is not None else [])]
    files = {
        str(path.relative_to(place)) for place in places for path in place.rglob("*")
        if path.is_file() and "trial" not in path.relative_to(place).parts[:1] and "__pycache__" not in path.parts
    }  # fmt: skip
    return Left(printed, frozenset(files))


def under_plain_python(script: Path, *argv: str) -> Left:
    """In a copy of the script's folder, so that it leaves nothing to the run that follows."""
    copy = script.parent.with_name(f"{script.parent.name}-plain")
    shutil.copytree(script.parent, copy)
    done = subprocess.run(
        [sys.executable, script.name, *argv], cwd=copy, env={"OMP_NUM_THREADS": "1", **os.environ}, text=True,
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return left(copy, told(done.stdout))


OF_FIT = re.compile(r"^\d+/\d+ - \S+ - \S+ - ")
"""What Keras writes of an epoch before its figures: its steps, and how long they took."""


def told(output: str) -> str:
    """The script's own lines: TensorFlow and oneDNN write what they like around them, and times differ."""
    own = ("loss", "other", "accuracy", "read back", "weights", "epoch", " [", '{"name"')
    lines = [line.rpartition("  ")[0] if line.endswith(" s") else line for line in output.splitlines()]
    lines = [OF_FIT.sub("", line) for line in lines]
    return "\n".join(line for line in lines if line.startswith(own))


Compare = Callable[..., None]


@pytest.fixture
def compare(run_child: Callable[..., Any]) -> Compare:
    """Holds runs without these sets of watches against plain Python."""

    def check(script: Path, cases: list[frozenset[Watch]], *argv: str) -> None:
        plain = under_plain_python(script, *argv)
        assert re.search("loss|weights", plain.printed), "what is compared says how it learned"
        before = {path.name for path in script.parent.iterdir()}
        for without in cases:
            ran = run_child(script, argv=argv, window=ENDLESS, without=without, timeout=240.0, fresh=True)
            assert ran.returncode == 0, (without, ran.output[-2000:])
            assert left(script.parent, told(ran.output), ran.folder) == plain, without
            assert not set(ran.facts["watches"]) & without and set(ran.facts["without"]) == without
            for path in script.parent.iterdir():
                if path.name not in before:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            shutil.rmtree(ran.folder)

    return check


ALL_OFF = frozenset(Watch)


def each_off(watches: tuple[Watch, ...]) -> list[frozenset[Watch]]:
    return [frozenset(), ALL_OFF, *(frozenset({watch}) for watch in watches)]


@pytest.mark.slow  # test_world.py, test_tier_one.py
def test_a_torch_script_trains_alike_with_all_watches_and_with_none(
    write_script: Callable[..., Path], compare: Compare
) -> None:
    compare(write_script(f"    KIND = 'plain'{TORCH}", "place/train.py"), [frozenset(), ALL_OFF])


@pytest.mark.slow
def test_a_keras_script_trains_alike_with_all_watches_and_with_none(
    write_script: Callable[..., Path], compare: Compare
) -> None:
    compare(write_script(f"    KIND = 'dataset'{KERAS}", "place/train.py"), [frozenset(), ALL_OFF])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_torch_scripts_train_alike_with_each_watch_left_out(
    kind: str, write_script: Callable[..., Path], compare: Compare
) -> None:
    compare(write_script(f"    KIND = {kind!r}{TORCH}", "place/train.py"), each_off(OF_TORCH))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KERAS_KINDS)
def test_keras_scripts_train_alike_with_each_watch_left_out(
    kind: str, write_script: Callable[..., Path], compare: Compare
) -> None:
    compare(write_script(f"    KIND = {kind!r}{KERAS}", "place/train.py"), each_off(OF_KERAS))


STUDIES = {
    "digits": (["--epochs", "2"], OF_TORCH),
    "digits_ddp": (["--epochs", "2"], OF_TORCH),
    "photos": (["--epochs", "1", "--crops", "64", "--val-crops", "32"], OF_TORCH),
    "keras_digits": (["--epochs", "2"], OF_KERAS),
    "keras_photos": (["--epochs", "1", "--crops", "64", "--val-crops", "32"], OF_KERAS),
    "jax_digits": (["--epochs", "2"], OF_JAX),
    "waterfall": (["--epochs", "2", "--crops", "64"], OF_KERAS),
    "waterfall, tf.data": (["--epochs", "2", "--crops", "64", "--input=tfdata"], OF_KERAS),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_the_examples_train_alike_with_each_watch_left_out(name: str, tmp_path: Path, compare: Compare) -> None:
    (tmp_path / "place").mkdir()
    shutil.copy(ROOT / "studies" / name.partition(",")[0] / "train.py", tmp_path / "place")
    arguments, watches = STUDIES[name]
    compare(tmp_path / "place" / "train.py", each_off(watches), *arguments)


def test_each_example_takes_part() -> None:
    shipped = {path.parent.name for path in ROOT.glob("studies/*/train.py")}
    assert {name.partition(",")[0] for name in STUDIES} == shipped


PLANTED = {**campaign.planted(), "courses": (textwrap.dedent(courses.SCRIPT), ())}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_script_trains_alike_with_all_watches_and_with_none(
    name: str, write_script: Callable[..., Path], compare: Compare
) -> None:
    script, arguments = PLANTED[name]
    compare(write_script(script, "place/train.py"), [frozenset(), ALL_OFF], *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_the_campaign_trains_alike_with_each_watch_left_out(
    name: str, write_script: Callable[..., Path], compare: Compare
) -> None:
    script, arguments = PLANTED[name]
    compare(write_script(script, "place/train.py"), [frozenset({watch}) for watch in OF_TORCH], *arguments)


@pytest.mark.slow
def test_the_campaigns_pairs_are_alike_with_each_watch_left_out(
    write_script: Callable[..., Path], compare: Compare
) -> None:
    compare(write_script(campaign.paired(), "place/train.py"), each_off(OF_KERAS), "pictures", "told.json")


LEDGER = """
    import sys
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for a, in DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=8):
        model(a).mean().backward()
        optimizer.step()
    for owner, name, _ in sys.modules["_autotune_child.patches"]._ledger:
        print("patched", getattr(owner, "__name__", owner), name)
"""
PATCHED_BY = {
    Watch.LOADER: "patched DataLoader __init__", Watch.MODULES: "patched Module __call__",
    Watch.OPTIMIZER: "patched torch.autograd backward", Watch.FILES: "patched builtins open",
    Watch.ARGUMENTS: "patched ArgumentParser parse_known_args", Watch.PROCESSES: "patched BaseProcess start",
}  # fmt: skip


@pytest.mark.slow
def test_without_any_watch_nothing_is_patched(write_script: Callable[..., Path], run_child: Callable[..., Any]) -> None:
    assert run_child(write_script(LEDGER), without=ALL_OFF).output == ""
    patched = run_child(write_script(LEDGER)).output.splitlines()
    assert set(PATCHED_BY.values()) <= set(patched)


@pytest.mark.slow
@pytest.mark.parametrize("watch", PATCHED_BY)
def test_a_watch_that_is_left_out_patches_nothing_and_the_others_do(
    watch: Watch, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    patched = run_child(write_script(LEDGER), without=[watch]).output.splitlines()
    assert set(PATCHED_BY.values()) - set(patched) == {PATCHED_BY[watch]}


def test_a_knob_whose_watch_is_left_out_is_told_so(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    facts = run_child(write_script(LEDGER), without=[Watch.LOADER, Watch.MODULES]).facts
    assert facts["left_out"]["num_workers"] == facts["left_out"]["batch_size"] == "the watch loader is off"
    assert facts["left_out"]["grad_accumulation"] == facts["left_out"]["precision"] == "the watch modules is off"
    assert "lr_scale" in facts["as_written"] and "lr_scale" not in facts["left_out"]
