"""JAX on a real CUDA device: what is counted, waited for and told, its memory beside other processes, and workers."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jax_scripts import SCRIPTS

from tuner.child.records import Window
from tuner.devices.present import resolve_device
from tuner.knowledge import Knowledge
from tuner.model import Config, OutcomeKind, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest

pytestmark = [pytest.mark.cuda, pytest.mark.jax_cuda, pytest.mark.timed]  # alone: JAX takes most of a card

Run = Callable[..., Any]
Write = Callable[..., Path]
CARD = "cuda:0"
WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1, "block_s": 0.0}


def is_counted(ran: Any) -> None:
    """By the script's own count, with its losses to the last bit."""
    assert ran.returncode == 0, ran.output
    trained = int(re.findall(r"^trained on (\d+)$", ran.output, re.MULTILINE)[-1])
    assert (ran.facts["unit"], ran.facts["samples"]) == ("samples", trained), ran.facts["remarks"]
    told = {float(record["value"]).hex() for record in ran.of("loss")}
    losses = re.findall(r"^loss (\S+)$", ran.output, re.MULTILINE)
    assert told and told <= {float.fromhex(loss).hex() for loss in losses}


@pytest.mark.parametrize("kind", ["jitted", "donated, with a key and a step", "nothing jitted"])
def test_a_loop_is_counted(kind: str, run_child: Run, write_script: Write) -> None:
    """Where no update is seen the last step isn't counted."""
    ran = run_child(write_script(SCRIPTS[kind]), argv=("23",), device=CARD, window=WHOLE, fresh=True)
    if kind == "nothing jitted":
        assert (ran.facts["unit"], ran.facts["steps"]) == ("samples", 22), ran.output
    else:
        is_counted(ran)
    assert ran.of("memory"), ran.output


HEAVY = """
    import time
    import jax, jax.numpy as jnp
    WIDTH, LAYERS = 4096, 20
    params = [0.01 * jax.random.normal(jax.random.PRNGKey(n), (WIDTH, WIDTH)) for n in range(LAYERS)]
    x = jax.random.normal(jax.random.PRNGKey(LAYERS), (WIDTH, WIDTH))

    def loss_of(params, x):
        for weights in params:
            x = jnp.tanh(x @ weights)
        return (x**2).mean()

    @jax.jit
    def update(params, x):
        loss, gradients = jax.value_and_grad(loss_of)(params, x)
        return jax.tree_util.tree_map(lambda p, g: p - 0.01 * g, params, gradients), loss

    for _ in range(3):
        params, loss = update(params, x)
    jax.block_until_ready(params)
    begun = time.perf_counter()
    for _ in range(20):
        params, loss = update(params, x)
    jax.block_until_ready(params)
    print("a step takes", (time.perf_counter() - begun) / 20, flush=True)
    try:
        for _ in range(MOST):
            params, loss = update(params, x)
    finally:
        stats = jax.local_devices()[0].memory_stats()
        print("peak", stats["peak_bytes_in_use"], "of", stats["bytes_limit"], flush=True)
"""


@pytest.mark.timed
def test_the_clock_waits_for_the_card_and_its_peak_is_told(run_child: Run, write_script: Write) -> None:
    """A call gives its results long before they are there."""
    script = write_script(HEAVY.replace("MOST", "10**6"))
    ran = run_child(script, device=CARD, window={"min_s": 2.0, "max_s": 4.0}, fresh=True)
    window = [block for block in ran.of("block") if block["phase"] == "window"]
    [own] = re.findall(r"^a step takes (\S+)$", ran.output, re.MULTILINE)
    step_s = sum(block["seconds"] for block in window) / sum(block["steps"] for block in window)
    assert step_s == pytest.approx(float(own), rel=0.15)

    [(peak, limit)] = re.findall(r"^peak (\d+) of (\d+)$", ran.output, re.MULTILINE)
    memory = ran.of("memory")[-1]
    assert memory["reserved"] == pytest.approx(int(peak), rel=0.05)
    assert memory["total"] == int(limit) and memory["pool"] >= memory["reserved"]


LARGE = """
    import argparse
    import jax, jax.numpy as jnp
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=2)
    size = parser.parse_args().batch_size
    params = jnp.zeros(2**20)
    @jax.jit
    def update(params, x):
        return params - 0.1 * jax.grad(lambda params: ((x + params) ** 2).mean())(params)
    for step in range(10**6):
        params = update(params, jnp.ones((size, 2**20)))
"""


def test_a_config_that_takes_too_much_is_infeasible(write_script: Write, tmp_path: Path) -> None:
    known = Knowledge(
        framework="jax", unit="samples", as_written={"batch_size": 2}, options={"batch_size": "batch_size"}
    )
    request = TrialRequest(
        tmp_path / "0001", Script(str(write_script(LARGE)), ()), resolve_device("cuda"),
        Config({"batch_size": 100_000}), window=Window(), limits=Limits(trial_timeout_s=60.0), knowledge=known,
    )  # fmt: skip
    outcome = ProcessRunner().run(request, threading.Event())
    assert (outcome.kind, outcome.reason) == (OutcomeKind.INFEASIBLE, "device-oom"), outcome


HOLDS = "import jax.numpy as jnp; jnp.zeros(1).block_until_ready(); print('there', flush=True); input()"


@pytest.fixture
def neighbour() -> Iterator[None]:
    """Another process, with what JAX takes of the card: three quarters of it."""
    command = [sys.executable, "-c", HOLDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "there\n"
        yield
        process.kill()


def test_beside_a_process_that_has_taken_its_share_the_pool_is_what_is_left(
    neighbour: None, run_child: Run, write_script: Write
) -> None:
    ran = run_child(write_script(SCRIPTS["jitted"]), argv=("23",), device=CARD, window=WHOLE, fresh=True)
    is_counted(ran)
    assert ran.of("memory")[-1]["pool"] < 0.25 * resolve_device("cuda").memory_bytes


FED = """
    import sys
    import jax, jax.numpy as jnp, numpy as np
    from torch.utils.data import DataLoader, Dataset, get_worker_info
    KEY = jax.random.PRNGKey(0)

    class Data(Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, number):
            x = np.random.default_rng(number).normal(size=8).astype("float32")
            return x, x.sum()

    def collate(rows):
        if get_worker_info():
            print("pool of a worker", jax.local_devices()[0].memory_stats()["pool_bytes"], flush=True)
        xs, ys = zip(*rows)
        return np.stack(xs), np.stack(ys)

    @jax.jit
    def update(params, x, y):
        loss, gradients = jax.value_and_grad(lambda params: ((x @ params - y) ** 2).mean())(params)
        return params - 0.1 * gradients, loss

    def main():
        params, trained = jnp.zeros(8), 0
        for epoch in range(3):
            for x, y in DataLoader(Data(), batch_size=16, collate_fn=collate):
                params, loss = update(params, x, y)
                trained += len(x)
                print("loss", float(loss).hex())
        print("trained on", trained, flush=True)

    if __name__ == "__main__":
        main()
"""


def test_workers_that_a_config_adds_take_no_share_of_the_card(run_child: Run, write_script: Write) -> None:
    """The script makes a key as it is imported, by which JAX takes its share."""
    script = write_script(FED)
    plain = run_child(script, device=CARD, window=WHOLE, fresh=True)
    is_counted(plain)
    assert plain.facts["fed_by"] == "DataLoader" and "num_workers" not in plain.facts["left_out"]
    known = {"framework": "jax", "unit": "samples", "training_loaders": plain.facts["training_loaders"]}
    ran = run_child(script, {"num_workers": 2}, knowledge=known, device=CARD, window=WHOLE, fresh=True)
    is_counted(ran)
    assert ran.evidence("num_workers") == "verified", ran.of("knob")
    pools = [int(size) for size in re.findall(r"^pool of a worker (\d+)$", ran.output, re.MULTILINE)]
    assert pools and max(pools) < 2**30


@pytest.mark.parametrize("value", ["fp32", "bf16"])
def test_products_are_computed_in_each_format_that_is_offered(value: str, run_child: Run, write_script: Write) -> None:
    """The script's own is tf32."""
    script = write_script(HEAVY.replace("MOST", "3"))
    plain = run_child(script, device=CARD, window=WHOLE, fresh=True)
    assert plain.facts["as_written"]["precision"] == "tf32" and "precision" not in plain.facts["left_out"], plain.facts
    assert set(plain.facts["precisions"]) == {"fp32", "tf32", "bf16"}
    known = {"framework": "jax", "unit": "samples"}
    ran = run_child(script, {"precision": value}, knowledge=known, device=CARD, window=WHOLE, fresh=True)
    assert ran.returncode == 0 and ran.evidence("precision") == "verified", ran.output
    own, theirs = (float(re.findall(r"^a step takes (\S+)$", each.output, re.MULTILINE)[-1]) for each in (plain, ran))
    assert theirs > 1.5 * own if value == "fp32" else theirs < own
