"""Scripts whose loops of JAX's are fed by Grain, in the ways that it has; each tells what it trained on."""

from __future__ import annotations

from support.jax_loops import UPDATE

HEAD = "import sys, time\nimport grain\nfrom absl import app\n" + UPDATE + """
class Source:
    def __len__(self):
        return 100
    def __getitem__(self, number):
        time.sleep(0.0005)
        x = np.random.default_rng(number).normal(size=8).astype("float32")
        return {"x": x, "y": np.int32(x.sum() > 0)}

class Noise(grain.transforms.RandomMap):
    def random_map(self, sample, rng):
        return {**sample, "x": sample["x"] + 0.1 * rng.normal(size=8).astype("float32")}

def batches_of(epochs, workers):
"""
TAIL = """
def main(argv):
    params, trained = weights(), 0
    try:
        for batch in batches_of(int(argv[1]), int(argv[2])):
            params, loss = update(params, batch["x"], batch["y"])
            trained += len(batch["x"])
            print("loss", float(loss).hex())
    finally:
        print("trained on", trained, flush=True)

if __name__ == "__main__":
    app.run(main)
"""
LOADER = """
    sampler = grain.samplers.IndexSampler(100, num_epochs=epochs, shuffle=True, seed=7)
    return grain.DataLoader(
        data_source=Source(), sampler=sampler, operations=[Noise(), grain.transforms.Batch(16)], worker_count=workers,
        read_options=grain.ReadOptions(num_threads=4, prefetch_buffer_size=32))
"""
DATASET = """
    data = grain.MapDataset.source(Source()).seed(7).shuffle().repeat(epochs).random_map(Noise()).batch(16)
    return data.to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=8))
"""
IN_EPOCHS = """
    data = grain.MapDataset.source(Source()).seed(7).shuffle().random_map(Noise()).batch(16)
    dataset = data.to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=8))
    for _ in range(epochs):
        yield from dataset
"""
BATCHED_LATE = """
    data = grain.MapDataset.source(Source()).seed(7).shuffle().repeat(epochs).random_map(Noise())
    return data.to_iter_dataset().map(lambda sample: sample).batch(16, drop_remainder=True)
"""
WITH_WORKERS = DATASET.rstrip() + ".mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))\n"


def script(batches: str) -> str:
    """The whole of it."""
    return HEAD + batches.strip("\n") + "\n" + TAIL


AHEAD = """
import sys, time
import grain
""" + UPDATE + """
def slowly(batch):
    time.sleep(0.02)
    return batch

def batches():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 8)).astype("float32")
    data = grain.MapDataset.source(list(zip(x, (x.sum(1) > 0).astype("int32"))))
    reading = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return data.seed(3).shuffle().to_iter_dataset(reading).batch(16).map(slowly)

if 1:
    params, trained, began = weights(), 0, time.perf_counter()
    for number, (x, y) in enumerate(batches()):
        params, loss = update(params, x, y)
        trained += len(x)
        print("loss", float(loss).hex())
        time.sleep(0.02)  # what a script does between its steps
    print("trained on", trained, "in", time.perf_counter() - began, flush=True)
"""
"""A loop that reads each loss, and whose batches are made where nothing but it waits for them."""
