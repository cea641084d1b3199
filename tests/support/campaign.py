"""The campaign: scripts of which it is known what autotune has to make of them. Each truth has a test of its own, which
imports its script here; tests/differential/test_watches.py runs all of them with each watch left out.
"""

from __future__ import annotations

import re
import textwrap

# What learns as well, or at another pace, or not at all (tests/end_to_end/test_screen_truths.py).
IN_CONFIG = "optimizer.param_groups[0].get('foreach')"
START = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    F = nn.functional
    torch.manual_seed(0)
"""
LEARNS = f"""
    x = torch.randn(2048, 16)
    loader = DataLoader(TensorDataset(x, x[:, :3].sum(1, keepdim=True)), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for epoch in range(1000):
        for a, b in loader:
            if {IN_CONFIG}:
                optimizer.param_groups[0]["lr"] = FASTER_RATE
            optimizer.zero_grad()
            (COEFFICIENT * F.mse_loss(model(a), b)).backward()
            optimizer.step()
"""
LANGUAGE_MODEL = """
    tokens = torch.randint(1000, (512, 9))
    loader = DataLoader(TensorDataset(tokens), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Embedding(1000, 16), nn.Linear(16, 1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1000):
        for (batch,) in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
            optimizer.step()
"""
POLICY = """
    x = torch.randn(2048, 8)
    loader = DataLoader(TensorDataset(x), batch_size=32, shuffle=True)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1000):
        for (state,) in loader:
            chosen = torch.distributions.Categorical(logits=model(state))
            action = chosen.sample()
            reward = (action == state[:, :4].argmax(1)).float()
            optimizer.zero_grad()
            ratio = torch.exp(chosen.log_prob(action) - chosen.log_prob(action).detach())
            (-ratio * (reward - reward.mean())).mean().backward()
            optimizer.step()
"""
GAN = f"""
    x = torch.randn(2048, 4) * 0.3 + 1
    loader = DataLoader(TensorDataset(x), batch_size=32, shuffle=True)
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
    judge = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4)
    other = torch.optim.Adam(judge.parameters(), lr=5e-3)
    loss_of = F.binary_cross_entropy_with_logits

    def update(which, losses):
        which.zero_grad()
        for loss in losses():
            loss.backward()
        which.step()

    def judged():
        yield loss_of(judge(real), torch.ones(len(real), 1))
        yield loss_of(judge(generator(noise).detach()), torch.zeros(len(real), 1))

    for epoch in range(1000):
        for (real,) in loader:
            noise = torch.randn(len(real), 4)
            if {IN_CONFIG}:
                optimizer.param_groups[0]["lr"] = 0.0
            update(other, judged)
            update(optimizer, lambda: [loss_of(judge(generator(noise)), torch.ones(len(real), 1))])
"""

# Sleeps that tell how fast each part is (test_planted_truths.py).
TRUTH = """
    import sys, time
    import torch
    from torch.utils.data import DataLoader, Dataset

    OPTIONS

    class Data(Dataset):
        def __len__(self): return 4096
        def __getitem__(self, index):
            time.sleep(LOAD_S / 8)
            x = torch.randn(8, generator=torch.Generator().manual_seed(index))
            return x, x.sum(0, keepdim=True)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 1)
        def forward(self, x):
            held = torch.ones(len(x), HELD)
            time.sleep(COMPUTE)
            return FORWARD

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(1000):
        for x, y in DataLoader(Data(), batch_size=BATCH, shuffle=True):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
"""
DEFAULTS = {
    "OPTIONS": "", "LOAD_S": "0.0", "COMPUTE": "0.006", "FORWARD": "self.linear(x)", "LR": "0.01",
    "BATCH": "8", "HELD": "0",
}  # fmt: skip

# The time that a forward takes grows with the square of its rows: 32 ms for 32 of them, 16 ms for twice 16, 8 ms for
# four times 8, 4 ms for eight times 4.
SPLIT = """
    import json, sys, time
    import torch
    from torch.utils.data import DataLoader, Dataset

    EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 10000

    class Data(Dataset):
        def __len__(self):
            return 300
        def __getitem__(self, index):
            x = torch.randn(8, generator=torch.Generator().manual_seed(index))
            return x, torch.cat([x.sum(0, keepdim=True), torch.tensor([float(index)])])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 1)
        def forward(self, x):
            time.sleep(0.032 * (len(x) / 32) ** 2)
            return self.linear(x)

    linear = torch.nn.functional.linear

    def noted(x, *args):
        sizes.add(len(x))
        return linear(x, *args)

    torch.nn.functional.linear = noted  # a model that notes it by itself keeps something
    torch.manual_seed(0)
    sizes, rates, pairs, averages = set(), [], [], 0
    loader = DataLoader(Data(), batch_size=32, shuffle=True)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(loader) * EPOCHS)
    average = torch.optim.swa_utils.AveragedModel(model)
    for epoch in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y[:, :1]).backward()
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
            average.update_parameters(model)
            averages += 1
            if epoch < 5:
                pairs += [[float(a), int(b)] for a, b in zip(x[:, 0], y[:, 1])]
    weights = [float(value) for p in model.parameters() for value in p.flatten()]
    print(json.dumps({
        "name": "cosine", "rates": rates, "steps": len(rates), "pairs": pairs, "averages": averages,
        "rate": optimizer.param_groups[0]["lr"], "weights": weights, "given": sorted(sizes),
    }))
"""

# Workers that are slower than the loop, or as fast, once they are open (test_torch_rates_true.py).
QUEUE = """
    import time, torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        opened = False
        def __len__(self):
            return LENGTH
        def __getitem__(self, place):
            if not Slow.opened:
                time.sleep(OPEN_S)
                Slow.opened = True
            time.sleep(SAMPLE_S)
            return torch.ones(4), torch.ones(1)

    loader = DataLoader(Slow(), batch_size=4, num_workers=2, prefetch_factor=PREFETCH, persistent_workers=PERSISTENT)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = 0
    while steps < 100_000:
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            steps += 1
            time.sleep(COMPUTE_S if steps > 1 else FIRST_S)
"""

# Elements take unevenly long: what need not keep its order comes out in another one.
PAIRS = """
    import json, os, sys, time
    import keras, numpy as np, tensorflow as tf
    AUTO = tf.data.AUTOTUNE
    folder, rows = sys.argv[1], 900

    def first(x):
        rows = tf.reshape(tf.cast(x, tf.float32), [tf.shape(x)[0], -1])
        return tf.ensure_shape(rows[:, :1], [None, 1])

    class Recording(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer, self.pairs = keras.layers.Dense(1), []
        def call(self, x):
            return self.layer(first(x))
        def train_step(self, data):
            x, y = data
            tf.numpy_function(lambda x, y: self.pairs.extend(zip(x.tolist(), y.tolist())), [x, y], [])
            return super().train_step((x, first(y)))

    def trained(dataset):
        model = Recording()
        model.compile("sgd", "mse")
        model.fit(dataset, epochs=1, verbose=0)
        return model.pairs

    def slow(seed):
        def value(x):
            time.sleep(0.0004 * ((int(x) * seed) % 5))
            return x
        return lambda x: tf.ensure_shape(tf.numpy_function(value, [x], tf.int64), [])

    numbers = tf.data.Dataset.range(rows)
    zipped = tf.data.Dataset.zip((numbers.map(slow(3), num_parallel_calls=AUTO),
                                  numbers.map(slow(7), num_parallel_calls=AUTO)))
    series = np.arange(rows)
    windows = keras.utils.timeseries_dataset_from_array(series, series[5:], 5, batch_size=16, shuffle=True, seed=1)
    for index in range(60):
        path = os.path.join(folder, f"class{index % 3}", f"{index}.png")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        keras.utils.save_img(path, np.full((4, 4, 3), index), scale=False)
    pictures = keras.utils.image_dataset_from_directory(
        folder, image_size=(4, 4), batch_size=4, label_mode="categorical", seed=1, verbose=False)
    split = numbers.shuffle(rows, seed=1, reshuffle_each_iteration=False).map(slow(3), num_parallel_calls=AUTO)
    split = split.map(lambda x: (x, x))
    freed = numbers.shuffle(rows, seed=1).map(lambda x: (x, x)).map(
        lambda x, y: (slow(3)(x), y), num_parallel_calls=AUTO)
    last = lambda x: np.ravel(x)[-1]
    json.dump({
        "zip": trained(zipped.shuffle(rows).batch(16)),
        "windows": [(int(last(x)) + 1, int(y)) for x, y in trained(windows)],
        "pictures": [(int(np.ravel(x)[0]) % 3, int(np.argmax(y))) for x, y in trained(pictures)],
        "split": trained(split.skip(100).batch(16)),
        "validates": [int(x) for x, _ in split.take(100)],
        "freed": trained(freed.batch(16)),
    }, open(sys.argv[2], "w"))
"""


def ended(text: str, **parts: str) -> str:
    """A script of PyTorch's with these words in it, that ends after few steps and prints the loss of each in full."""
    for name, code in parts.items():
        text = text.replace(name, code)
    text = re.sub(r"range\(1000\)", "range(2)", text).replace("steps < 100_000", "steps < 12")
    text = re.sub(r"^( +)(\S.*)\.backward\(\)$", r"\1shown(\2).backward()", text, flags=re.MULTILINE)
    return "def shown(loss):\n    print('loss', float(loss))\n    return loss\n" + textwrap.dedent(text)


def planted() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name → a script of PyTorch's that ends by itself and prints how it learned, and its arguments."""
    start = textwrap.dedent(START)
    short = {"4096": "64", **DEFAULTS, "COMPUTE": "0.0"}
    slow = {"OPEN_S": "0", "LENGTH": "400", "SAMPLE_S": "0.001", "PREFETCH": "8", "PERSISTENT": "True"}
    learns = ended(start + textwrap.dedent(LEARNS), FASTER_RATE="RATE", COEFFICIENT="1.0", RATE="0.05")
    return {
        "learns": (learns, ()),
        "language model": (ended(start + textwrap.dedent(LANGUAGE_MODEL)), ()),
        "policy gradient": (ended(start + textwrap.dedent(POLICY)), ()),
        "gan": (ended(start + textwrap.dedent(GAN)), ()),
        "truth": (ended(TRUTH, **short), ()),
        "queue": (ended(start + textwrap.dedent(QUEUE), **slow, FIRST_S="0.2", COMPUTE_S="0.001"), ()),
        "split": (textwrap.dedent(SPLIT), ("2",)),
    }


def paired() -> str:
    """``PAIRS``, drawn alike in each run; it prints all pairs at its end."""
    text = textwrap.dedent(PAIRS).replace("import keras, numpy as np, tensorflow as tf", _SEEDED)
    # Its figures are the numbers of samples: at the usual rate the loss would soon be no number, which ends a trial.
    text = text.replace('compile("sgd", ', "compile(keras.optimizers.SGD(1e-9), ")
    return text + "print('loss', open(sys.argv[2]).read())\n"


_SEEDED = "import keras, numpy as np, tensorflow as tf\nkeras.utils.set_random_seed(3)"
