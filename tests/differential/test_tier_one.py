"""Tier 1 changes nothing but speed: with all its knobs a script trains on the same samples, to the same loss."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuner.model import Value
from tuner.space.registry import load_space

ELSEWHERE = {"deterministic", "cache", "allocator", "ddp_bucket_mb", "ddp_static_graph", "async_dispatch"}
"""An order is what the one gives up (tests/end_to_end/test_tf_applied.py), and behind the other no map is left to move
(tests/support/tf_plan_checks.py). The third one says where memory lies, of which no number is a part: a process begins
with it (tests/end_to_end/test_preloaded_allocators.py). Two are of several ranks
(tests/differential/test_ddp_knobs.py); the last one is of Keras on JAX (tests/end_to_end/test_keras_backends.py)."""

TORCH = """
    import json, torch
    torch.manual_seed(0)
    class Rows(torch.utils.data.Dataset):
        def __init__(self):
            self.x, self.y = torch.randn(96, 3, 8, 8), torch.randint(0, 4, (96,))
        def __len__(self):
            return 96
        def __getitem__(self, index):
            return index, self.x[index], self.y[index]
    train = torch.utils.data.DataLoader(Rows(), batch_size=8, shuffle=True)
    layers = torch.nn
    model = layers.Sequential(layers.Conv2d(3, 8, 3), layers.ReLU(), layers.Conv2d(8, 8, 3), layers.Flatten(),
                              layers.Linear(128, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    epochs, losses = [], []
    for epoch in range(3):
        epochs.append([])
        for index, x, y in train:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            epochs[-1].extend(index.tolist())
            losses.append(float(loss))
    print("trained", json.dumps([epochs, losses]))
"""

# In place of a card: what PyTorch's own loader does with its batches where there is one, in memory that is none of its.
PINNED = """
    import collections, json, torch
    torch.manual_seed(0)
    pinned, Pair = [], collections.namedtuple("Pair", "x y")

    def pin_memory(tensor, *args):
        pinned.append(len(tensor))
        return tensor.clone()

    torch.Tensor.pin_memory = pin_memory
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda *args, **kwargs: torch.device("cpu")

    class Own:  # no loader can pin it
        def __init__(self, rows):
            self.rows = rows

    class Rows(torch.utils.data.Dataset):
        def __init__(self):
            self.x, self.y = torch.randn(96, 8), torch.randint(0, 4, (96,))
        def __len__(self):
            return 96
        def __getitem__(self, index):
            return index, self.x[index], self.y[index]

    def collate(rows):
        index, x, y = torch.utils.data.default_collate(rows)
        return {"pair": Pair(x, y), "own": Own(index), "names": [f"row {i}" for i in index.tolist()]}

    train = torch.utils.data.DataLoader(Rows(), batch_size=8, shuffle=True, collate_fn=collate)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    epochs, losses = [], []
    for epoch in range(3):
        epochs.append([])
        for batch in train:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch["pair"].x), batch["pair"].y)
            loss.backward()
            optimizer.step()
            assert batch["names"] == [f"row {i}" for i in batch["own"].rows.tolist()]
            epochs[-1].extend(batch["own"].rows.tolist())
            losses.append(float(loss))
    print("trained", json.dumps([epochs, losses]))
    print("pinned", len(pinned))
"""
CHOOSING = TORCH + """
    from torch.backends import cuda, cudnn
    names = ("enabled", "deterministic", "benchmark", "benchmark_limit", "allow_tf32")
    print("settings", json.dumps([*(getattr(cudnn, name) for name in names), cuda.matmul.allow_tf32,
          torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()]))
"""

KERAS = """
    import json
    import keras, numpy as np, tensorflow as tf
    keras.utils.set_random_seed(0)
    epochs, losses = [], []

    class Recording(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(1)
        def call(self, x):
            return self.layer(x)
        def train_step(self, data):
            (index, x), y = data
            tf.numpy_function(lambda rows: epochs[-1].extend(rows.tolist()), [index], [])
            return super().train_step((x, y))

    class Epochs(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            epochs.append([])
        def on_epoch_end(self, epoch, logs=None):
            losses.append(float(logs["loss"]))

    x = np.random.default_rng(0).random((96, 4), dtype="float32")
    rows = tf.data.Dataset.from_tensor_slices((np.arange(96), x)).map(lambda i, x: (i, tf.reverse(x, [0]) * 2.0))
    rows = rows.shuffle(96, seed=3).map(lambda i, x: ((i, x - 1.0), tf.reduce_sum(x, keepdims=True))).batch(8)
    model = Recording()
    model.compile("sgd", "mse")
    model.fit(rows, epochs=3, verbose=0, callbacks=[Epochs()])
    print("trained", json.dumps([epochs, losses]))
"""

CONFIGS: dict[str, dict[str, Value]] = {
    "torch": {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True, "threads": 2, "channels_last": True},
    "keras": {
        "parallel_calls": 2, "vectorized_map": True, "prefetch": 4, "private_threads": 2, "threads": 2,
        "inter_op_threads": 2, "steps_per_execution": 4,
    },
}  # fmt: skip


NOT_ON_CPU = {
    "torch": {"pin_memory", "cudnn_benchmark", "loader_prefetch_size", "device_prefetch_size"},
    "keras": {"memory_growth"},
}
"""They have tests of their own: here, and in tests/end_to_end/test_keras_devices.py and test_xla_child.py."""


@pytest.mark.parametrize("space", CONFIGS)
def test_each_knob_of_tier_one_takes_part(space: str) -> None:
    """One that is declared anew, or put into tier 1, has to show here that it belongs there."""
    declared = [knob for knob in load_space(space).knobs if knob.tier == 1]
    on_cpu = {knob.name for knob in declared if knob.devices is None or "cpu" in knob.devices}
    assert on_cpu == {*CONFIGS[space], *(ELSEWHERE & on_cpu)}
    assert {knob.name for knob in declared} - on_cpu == NOT_ON_CPU[space]


def told(output: str, word: str) -> Any:
    found = re.search(rf"^{word} (.*)$", output, re.MULTILINE)
    assert found, output
    return json.loads(found[1])


@pytest.mark.slow
def test_pinned_batches_are_the_same_batches(write_script: Callable[..., Path], run_child: Callable[..., Any]) -> None:
    """Whatever they hold: what the loader can't pin is passed on."""
    path = write_script(PINNED)
    plain, pinned = (run_child(path, config, mode="apply") for config in ({}, {"pin_memory": True}))
    assert plain.returncode == pinned.returncode == 0, plain.output + pinned.output
    assert told(pinned.output, "trained") == told(plain.output, "trained")
    assert (told(plain.output, "pinned"), told(pinned.output, "pinned")) == (0, 2 * 36), "x and y of each batch"


@pytest.mark.slow
def test_cudnn_is_let_choose_and_nothing_else_is_set(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    path = write_script(CHOOSING)
    plain, chosen = (run_child(path, config, mode="apply") for config in ({}, {"cudnn_benchmark": True}))
    assert plain.returncode == chosen.returncode == 0, plain.output + chosen.output
    before, after = told(plain.output, "settings"), told(chosen.output, "settings")
    assert (before[2], after[2]) == (False, True), "the one setting that the knob is for"
    assert [*after[:2], *after[3:]] == [*before[:2], *before[3:]], "neither the precision nor determinism"
    assert told(chosen.output, "trained") == told(plain.output, "trained")


@pytest.mark.parametrize(
    ("space", "script"),
    [("torch", TORCH), pytest.param("keras", KERAS, marks=pytest.mark.slow)],
    ids=["torch", "keras"],
)
def test_a_script_trains_on_the_same_samples_to_the_same_loss(
    space: str, script: str, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    path = write_script(script)
    told = []
    for config in ({}, CONFIGS[space]):
        run = run_child(path, config, mode="apply")
        assert run.returncode == 0, run.output
        found = re.search(r"trained (\[.*\])", run.output)
        assert found, run.output
        told.append(json.loads(found[1]))
        assert bool(config) == ("in effect: " in run.output) and "NOT in effect" not in run.output, run.output
    (before, losses_before), (after, losses_after) = told
    # Workers that live on draw no new seed with each epoch: PyTorch shuffles the later ones in another order.
    exact = 1 if "persistent_workers" in CONFIGS[space] else len(before)
    assert after[:exact] == before[:exact]
    assert [sorted(epoch) for epoch in after] == [sorted(epoch) for epoch in before]
    steps = exact * len(losses_before) // len(before)
    assert losses_after[:steps] == pytest.approx(losses_before[:steps], rel=1e-4)
    assert losses_after[-1] < losses_before[0]
