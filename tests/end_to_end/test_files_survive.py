"""Whatever a script does to what was there before: it sees what plain Python shows it, and nothing changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.file_attacks import HARMLESS, HARNESS, PYTHON, prepare, state

from tuner.child.wire import KEPT
from tuner.runner.created_files import move_created_files

TELLS = """
import builtins, tuner
tuner.report(step=1)  # what comes now isn't preparation
def print(*what, sep=" "):
    builtins.print("\\n=> " + sep.join(map(str, what)).replace("\\n", "\\n=> "), flush=True)
"""
PLAIN = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_child: Callable[..., Any]) -> Callable[..., Any]:
    """Runs the script ``train.py`` of the project under plain Python in a copy of it, and as a trial in itself."""

    def run(script: str, project: Path, timeout: float = 120.0) -> Any:
        copy = tmp_path / "plain" / project.name
        shutil.copytree(project, copy, symlinks=True)
        for folder in (project, copy):
            (folder / "train.py").write_text(TELLS + script)
        plain = subprocess.run(
            [sys.executable, "train.py"], cwd=copy, env=PLAIN, capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip
        assert plain.returncode == 0, plain.stderr
        time.sleep(0.05)
        before = state(project)
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
        trial = run_child(project / "train.py", timeout=timeout)
        assert told(trial.output) == told(plain.stdout), trial.output
        assert trial.returncode == 0
        assert not [note for note in trial.of("note") if "could not be instrumented" in note["text"]]
        (step,) = trial.of("first_step")
        line = {"v": 1, "kind": "first_step", "t": step["t"], "seconds": 0.0}
        (trial.folder / "records.jsonl").write_text(json.dumps(line) + "\n")
        move_created_files(trial.folder)
        assert state(project) == before
        return trial

    return run


def told(output: str) -> list[str]:
    """What the script printed, without what libraries do."""
    return [line for line in output.splitlines() if line.startswith("=> ")]


def prepare_by(script: str, project: Path, argument: str) -> None:
    """What a run of the user's left: the same script, asked for its folder alone."""
    (project / "prepare.py").write_text(script)
    ran = subprocess.run(
        [sys.executable, "prepare.py", argument], cwd=project, env=PLAIN, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_pythons_own_calls(tmp_path: Path, compare: Callable[..., Any]) -> None:
    project = tmp_path / "project"
    prepare(project, list(PYTHON))
    trial = compare(f"ATTACKS = {json.dumps(PYTHON)}\n{HARNESS}", project)
    assert "through" in trial.output
    notes = [note["text"] for note in trial.of("note")]
    assert any("diverted" in note for note in notes) and any("kept" in note for note in notes)
    kept = {json.loads(line) for line in (trial.folder / KEPT).read_text().splitlines()}
    assert {Path(path).relative_to(project).parts[0] for path in kept} == {*PYTHON} - HARMLESS
    assert all(os.path.lexists(path) for path in kept)


def test_files_of_the_users_in_the_temporary_folder(tmp_path: Path, compare: Callable[..., Any]) -> None:
    """Neither the current folder nor one that an argument names."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    project = tmp_path / "project"
    project.mkdir()
    script = """
        import os, shutil
        folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "elsewhere")
        os.makedirs(folder, exist_ok=True)
        for name in ("a.txt", "b.txt"):
            with open(os.path.join(folder, name), "w") as file:
                file.write("of a trial")
            print(open(os.path.join(folder, name)).read())
    """
    (elsewhere / "a.txt").write_text("the user's")
    before = state(elsewhere)
    compare(textwrap.dedent(script), project)
    assert state(elsewhere) == before


LIBRARIES = """
    import os, shutil, sys
    import h5py, numpy as np, safetensors.numpy, safetensors.torch, tokenizers, torch
    from safetensors import safe_open
    new = sys.argv[1:] == ["prepare"]
    value = 1 if new else 2
    for folder in ("theirs",) if new else ("theirs", "mine"):
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
        # PyTorch
        torch.save({"a": value}, "a.pt")
        print(torch.load("a.pt"))
        torch.save(torch.full((3,), value), "mapped.pt")
        print(torch.load("mapped.pt", mmap=True))
        torch.jit.save(torch.jit.script(torch.nn.Linear(1, value)), "jit.pt")
        print(torch.jit.load("jit.pt").weight.shape)
        # safetensors
        for module, tensor in ((safetensors.torch, torch.full((2,), value)), (safetensors.numpy, np.full(2, value))):
            module.save_file({"x": tensor}, "x.safetensors")
            print(module.load_file("x.safetensors"))
        with safe_open("x.safetensors", framework="np") as file:
            print(file.get_tensor("x"))
        safetensors.torch.save_file({"x": torch.full((2,), value)}, "t.tmp")
        os.replace("t.tmp", "x.safetensors")
        print(safetensors.torch.load_file("x.safetensors"))
        # tokenizers
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"word": value, "?": 0}, unk_token="?"))
        tokenizer.save("tokenizer.json")
        print(tokenizers.Tokenizer.from_file("tokenizer.json").encode("word").ids)
        print(tokenizer.model.save("."), open("vocab.json").read())
        # HDF5
        for mode in ("w", "a", "r+"):
            with h5py.File("data.h5", mode) as file:
                file[f"{mode}{value}"] = np.full(2, value)
            with h5py.File("data.h5") as file:
                print(sorted(file))
        try:
            h5py.File("data.h5", "x")
        except FileExistsError:
            print("exists")
        # NumPy
        np.save("array.npy", np.full(4, value))
        mapped = np.load("array.npy", mmap_mode="r+")
        mapped[0] = 7
        mapped.flush()
        print(np.load("array.npy"))
        raw = np.memmap("raw.bin", np.uint8, "w+", shape=(4,))
        raw[:] = value
        raw.flush()
        np.memmap("raw.bin", np.uint8, "r+")[1] = 9
        print(np.fromfile("raw.bin", np.uint8))
        np.full(4, value, np.uint8).tofile("raw.bin")
        print(np.fromfile("raw.bin", np.uint8))
        np.savez("arrays.npz", a=np.full(2, value))
        print(np.load("arrays.npz")["a"])
        os.chdir("..")
    if not new:
        shutil.rmtree("theirs")
        print(os.path.exists("theirs/a.pt"))
"""


def test_libraries_that_write_past_python(tmp_path: Path, compare: Callable[..., Any]) -> None:
    """In a folder with files of the same names, and in a new one."""
    project = tmp_path / "project"
    project.mkdir()
    script = textwrap.dedent(LIBRARIES)
    prepare_by(script, project, "prepare")
    assert len(list((project / "theirs").iterdir())) > 8
    compare(script, project)


TRANSFORMERS = """
    import os, sys
    import torch, transformers
    from tokenizers import Tokenizer, models, pre_tokenizers
    torch.manual_seed(len(sys.argv))
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=4, vocab_size=8, n_positions=8)
    tokenizer = Tokenizer(models.WordLevel({"a": 1 + len(sys.argv), "?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")
    for folder in sys.argv[1:] or ["theirs", "mine"]:
        model = transformers.GPT2LMHeadModel(config)
        model.save_pretrained(folder)
        fast.save_pretrained(folder)
        loaded = transformers.GPT2LMHeadModel.from_pretrained(folder)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters()))
        print(transformers.AutoTokenizer.from_pretrained(folder)("a b")["input_ids"], sorted(os.listdir(folder)))
        model.save_pretrained(folder + "-in-parts", max_shard_size=300)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder + "-in-parts")
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters()))
        print(len([name for name in os.listdir(folder + "-in-parts") if "safetensors" in name]))
"""


@pytest.mark.slow
def test_a_pretrained_model_is_loaded_as_it_was_saved(tmp_path: Path, compare: Callable[..., Any]) -> None:
    """By Rust: into a folder of the script's own making, and over a model of the user's."""
    project = tmp_path / "project"
    project.mkdir()
    script = textwrap.dedent(TRANSFORMERS)
    prepare_by(script, project, "theirs")
    compare(script, project)


TENSORFLOW = """
    import os, sys
    import numpy as np, tensorflow as tf
    gfile = tf.io.gfile
    preparing = sys.argv[1:] == ["prepare"]
    value = 1.0 if preparing else 2.0
    def records(path):
        return [int(r.numpy()) for r in tf.data.TFRecordDataset([path])]
    def numbers(dataset):
        return [int(x) for x in dataset]
    for top in ("theirs",) if preparing else ("theirs", "mine"):
        gfile.makedirs(top + "/deep/er")
        os.chdir(top)
        with tf.io.TFRecordWriter("a.tfrecord") as writer:
            writer.write(str(int(value)).encode())
        print(records("a.tfrecord"), numbers(tf.data.TFRecordDataset("a.tfrecord").map(tf.strings.to_number)))
        tf.io.write_file("b.txt", f"{value}")
        tf.io.write_file(tf.constant("c.txt"), f"{value}")
        print(tf.io.read_file("b.txt").numpy(), tf.io.read_file(tf.constant("c.txt")).numpy())
        with gfile.GFile("d.txt", "w") as file:
            file.write(f"{value}")
        with gfile.GFile("d.txt", "a") as file:
            file.write(f"{value}")
        print(gfile.GFile("d.txt").read(), open("d.txt").read(), gfile.stat("d.txt").length)
        gfile.copy("d.txt", "e.txt", overwrite=True)
        gfile.rename("b.txt", "e.txt", overwrite=True)
        print(gfile.GFile("e.txt").read(), gfile.exists("b.txt"), os.path.exists("b.txt"))
        with gfile.GFile("b.txt", "w") as file:
            file.write("again")
        # saved datasets, caches, snapshots
        data = tf.data.Dataset.range(int(value) * 3)
        data.save("saved")
        print(numbers(tf.data.Dataset.load("saved")))
        if not preparing:
            print(numbers(data.cache("cached-" + top)), numbers(data.cache("cached-" + top)))
            print(numbers(data.snapshot("snap-" + top)))
        # checkpoints: a manager that resumes, and sweeps what is too many
        variable = tf.Variable(0.0)
        checkpoint = tf.train.Checkpoint(variable=variable)
        manager = tf.train.CheckpointManager(checkpoint, "managed", max_to_keep=1)
        checkpoint.restore(manager.latest_checkpoint)
        print(variable.numpy(), os.path.basename(manager.latest_checkpoint or "-"))
        variable.assign(value)
        manager.save()
        variable.assign(0.0)
        checkpoint.restore(tf.train.latest_checkpoint("managed")).assert_consumed()
        print(variable.numpy(), os.path.basename(manager.latest_checkpoint))
        path = checkpoint.write("written/one")
        tf.train.Checkpoint(variable=variable).read("written/one").expect_partial()
        print([name for name, _ in tf.train.list_variables("written/one")][-1:])
        module = tf.Module()
        module.variable = tf.Variable(value)
        tf.saved_model.save(module, "model")
        print(tf.saved_model.load("model").variable.numpy())
        with tf.summary.create_file_writer("logs").as_default():
            tf.summary.scalar("x", value, step=0)
        if preparing:
            with gfile.GFile("deep/er/f.txt", "w") as file:
                file.write("deep")
        else:
            gfile.rmtree("deep")
            print(gfile.exists("deep"), gfile.exists("deep/er/f.txt"), os.path.exists("deep"))
            gfile.makedirs("deep/er")
            with gfile.GFile("deep/er/g.txt", "w") as file:
                file.write("new")
            print(gfile.listdir("deep/er"), os.listdir("deep/er"), gfile.glob("deep/er/*"))
            gfile.remove("d.txt")
            print(gfile.exists("d.txt"), "d.txt" in gfile.listdir("."), gfile.glob("d.tx*"))
            try:
                gfile.GFile("d.txt").read()
            except tf.errors.NotFoundError:
                print("not found")
        os.chdir("..")
"""


@pytest.mark.slow
def test_tensorflow_writes_through_c(tmp_path: Path, compare: Callable[..., Any]) -> None:
    project = tmp_path / "project"
    project.mkdir()
    script = textwrap.dedent(TENSORFLOW)
    prepare_by(script, project, "prepare")
    compare(script, project)


KERAS = """
    import os, sys
    os.environ["KERAS_BACKEND"] = "torch"
    import keras, numpy as np
    keras.utils.set_random_seed(len(sys.argv))
    for folder in sys.argv[1:] or ["theirs", "mine"]:
        os.makedirs(folder, exist_ok=True)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        keep = keras.callbacks.ModelCheckpoint(folder + "/best.keras")
        weights = keras.callbacks.ModelCheckpoint(folder + "/w.weights.h5", save_weights_only=True)
        back_up = keras.callbacks.BackupAndRestore(folder + "/back-up")
        model.fit(np.ones((4, 2)), np.ones(4), callbacks=[keep, weights, back_up], verbose=0)
        x = np.ones((1, 2))
        expected = model.predict(x, verbose=0)
        assert (keras.models.load_model(folder + "/best.keras").predict(x, verbose=0) == expected).all()
        model.load_weights(folder + "/w.weights.h5")
        model.save(folder + "/legacy.h5")
        assert (keras.models.load_model(folder + "/legacy.h5", compile=False).predict(x, verbose=0) == expected).all()
        print(sorted(os.listdir(folder)))
"""


@pytest.mark.slow
def test_keras_models(tmp_path: Path, compare: Callable[..., Any]) -> None:
    project = tmp_path / "project"
    project.mkdir()
    script = textwrap.dedent(KERAS)
    prepare_by(script, project, "theirs")
    compare(script, project)


def test_a_diverted_file_that_is_read_past_python_is_told_of(
    tmp_path: Path, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    (tmp_path / "theirs.txt").write_text("the user's")
    (tmp_path / "unread.txt").write_text("the user's")
    time.sleep(0.05)
    script = write_script("""
        import subprocess
        for name in ("theirs.txt", "unread.txt"):
            with open(name, "w") as file:
                file.write("of a trial")
            print(open(name).read())
        print(subprocess.run(["cat", "theirs.txt"], capture_output=True, text=True).stdout)
    """)
    run = run_child(script)
    assert run.output.splitlines() == ["of a trial", "of a trial", "the user's"]
    (remark,) = run.facts["remarks"]
    assert remark.startswith(str(tmp_path / "theirs.txt"))
