"""torch_xla scripts in a real child, on PJRT's CPU client: steps, samples, waiting, graphs, and what can't be studied.

They run in the environment of `make test-xla`. Nothing here was ever run on a TPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from support.rates import measured
from support.xla import on_the_processor, seen_by, trained

__all__ = ["on_the_processor", "trained"]
pytestmark = pytest.mark.xla
Run = Callable[..., Any]

LOOPS = {
    "MpDeviceLoader and optimizer_step": """
        net, optimizer = make()
        loader = DataLoader(DATA, batch_size=16, shuffle=True)
        for epoch in range(10_000):
            for x, y in pl.MpDeviceLoader(loader, torch_xla.device()):
                optimizer.zero_grad()
                F.cross_entropy(net(x), y).backward()
                xm.optimizer_step(optimizer)
                count(x)
    """,
    "a plain loader and mark_step": """
        net, optimizer = make()
        loader = DataLoader(DATA, batch_size=16, shuffle=True, num_workers=1)
        for epoch in range(10_000):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(net(x.to("xla")), y.to("xla")).backward()
                optimizer.step()
                count(x)
                xm.mark_step()
    """,
    "optimizer_step with a barrier": """
        net, optimizer = make()
        for epoch in range(10_000):
            for x, y in DataLoader(DATA, batch_size=16, drop_last=True):
                optimizer.zero_grad()
                F.cross_entropy(net(x.to("xla")), y.to("xla")).backward()
                count(x)
                xm.optimizer_step(optimizer, barrier=True)
    """,
    "a compiled step on made-up samples": """
        net, optimizer = make()
        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            return loss
        step = torch_xla.compile(step, full_graph=True, name="step")
        loader = xu.SampleGenerator(data=(torch.randn(16, 32), torch.zeros(16, dtype=torch.int64)), sample_count=10**6)
        for x, y in pl.MpDeviceLoader(loader, torch_xla.device()):
            count(x)
            step(x, y)
    """,
    "spawned, a process for each chip": """
        def train(index):
            net, optimizer = make()
            loader = DataLoader(DATA, batch_size=16)
            for epoch in range(10_000):
                for x, y in pl.MpDeviceLoader(loader, torch_xla.device(), batches_per_execution=2):
                    optimizer.zero_grad()
                    F.cross_entropy(net(x), y).backward()
                    optimizer.step()
                    count(x)
        if __name__ == "__main__":
            xmp.spawn(train)
    """,
    "eager, operation by operation": """
        from torch_xla.experimental import eager_mode
        eager_mode(True)
        net, optimizer = make()
        for epoch in range(10_000):
            for x, y in pl.MpDeviceLoader(DataLoader(DATA, batch_size=16), torch_xla.device()):
                optimizer.zero_grad()
                F.cross_entropy(net(x), y).backward()
                count(x)
                optimizer.step()
    """,
    "several backwards to a step": """
        net, optimizer = make()
        loader = DataLoader(DATA, batch_size=16, shuffle=True, drop_last=True)
        for epoch in range(10_000):
            for number, (x, y) in enumerate(pl.MpDeviceLoader(loader, torch_xla.device()), 1):
                (F.cross_entropy(net(x), y) / 2).backward()
                if number % 2 == 0:
                    xm.optimizer_step(optimizer)
                    optimizer.zero_grad()
                count(x)
    """,
    "two optimizers in one graph": """
        net, optimizer = make()
        other, second = make()
        for epoch in range(10_000):
            for x, y in DataLoader(DATA, batch_size=16):
                x, y = x.to("xla"), y.to("xla")
                for model, update in ((net, optimizer), (other, second)):
                    update.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    update.step()
                count(x)
                torch_xla.sync()
    """,
}


NO_OPTION = {
    "a plain loader and mark_step": "no ParallelLoader or MpDeviceLoader",
    "eager, operation by operation": "the script computes in eager mode",
    "a compiled step on made-up samples": "the script itself gives the device each graph",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_samples_are_those_that_the_script_counts(trained: Run, loop: str) -> None:
    """Between the first and the last of its blocks, to within the step at either end."""
    ran = trained(LOOPS[loop], window={"min_s": 1.0, "max_s": 1.0})
    assert ran.of("window")[0]["complete"], ran.output
    assert ran.facts["unit"] == "samples"
    blocks = [block for block in ran.of("block") if block["steps"]]
    begins, ends = blocks[0]["t"] - blocks[0]["seconds"], blocks[-1]["t"]
    own = [samples for at, samples in seen_by(ran) if begins <= at <= ends]
    assert sum(block["samples"] for block in blocks) == pytest.approx(own[-1] - own[0], rel=0.02, abs=64)
    assert measured(ran).rate > 0
    assert ran.facts["as_written"]["grad_accumulation"] == (2 if "backwards" in loop else 1)
    assert ran.facts["left_out"].get("batches_per_execution", "").startswith(NO_OPTION.get(loop, ""))


def test_a_step_ends_with_its_graph_whatever_number_of_updates_it_holds(trained: Run) -> None:
    ran = trained(LOOPS["two optimizers in one graph"])
    assert ran.facts["steps"] == pytest.approx(len(seen_by(ran)), abs=2), "both step on one batch"
    assert ran.facts["optimizer_steps"] == 2 * ran.facts["steps"]


GRAPHS = """
    net, optimizer = make()
    def at(step):
        if step in (100, 300):
            xm.wait_device_ops()
            names = ("CompileTime", "ExecuteTime")
            counts = [met.metric_data(name)[0] for name in names]
            print("GRAPHS", *counts, met.counter_value("aten::_local_scalar_dense") or 0, flush=True)
    step = 0
    for epoch in range(20):
        for x, y in pl.MpDeviceLoader(DataLoader(DATA, batch_size=16, drop_last=True), torch_xla.device()):
            at(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            xm.optimizer_step(optimizer)
            step += 1
"""


OPTIONS = {"loader_prefetch_size": 32, "device_prefetch_size": 4, "host_to_device_transfer_threads": 2}


@pytest.mark.parametrize(
    "config", [{}, {"precision": "bf16"}, {"batch_size": 32}, OPTIONS, {"batches_per_execution": 5}], ids=str
)
def test_in_the_steady_state_no_hook_and_no_knob_adds_a_graph(trained: Run, config: dict[str, Any]) -> None:
    """200 steps are 200 graphs, or a fifth of them, none of them new; values are read once in a block at most."""
    window = {"min_s": 60.0, "max_s": 60.0}
    ran = trained(GRAPHS, config, window=window, knowledge={"training_loaders": ["train.py:27#0"]} if config else {})
    told = re.findall(r"^GRAPHS (\d+) (\d+) (\d+)$", ran.output, re.MULTILINE)
    assert len(told) == 2, ran.output
    first, last = [[*map(int, counts)] for counts in told]
    assert last[0] == first[0], "compiled"
    # Of several batches an epoch's first graph has one fewer, and its last one, an 11th, what is left over.
    assert last[1] - first[1] == (44 if "batches_per_execution" in config else 200), "executed"
    assert last[2] - first[2] <= len(ran.of("block")), "read on the host"
    for knob in config:
        assert ran.evidence(knob) == "verified", ran.of("knob")
    if not config:
        written = {"loader_prefetch_size": 16, "device_prefetch_size": 8, "host_to_device_transfer_threads": 1}
        assert ran.facts["as_written"].items() >= {**written, "batches_per_execution": 1}.items()


SHOWN = """
    class Wrapped:
        def __iter__(self):
            return iter(DataLoader(DATA, batch_size=16))
    net, optimizer = make()
    for epoch in range(3):
        for x, y in (fed := pl.MpDeviceLoader(LOADER, torch_xla.device())):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            xm.optimizer_step(optimizer)
            print("LOSS", epoch, loss.item())
        print("MADE", fed._parallel_loader._queues[torch_xla.device()].queue.max_size())
"""


def test_a_run_is_given_what_the_profile_says(trained: Run) -> None:
    """A process that isn't measured is patched where a loader is made, and nowhere else."""
    loop = SHOWN.replace("LOADER", "DataLoader(DATA, batch_size=16, shuffle=True)")
    ran = trained(loop, {"device_prefetch_size": 4, "batches_per_execution": 5}, mode="apply")
    assert ran.output.count("MADE 4") == 3, ran.output
    assert "in effect: device_prefetch_size, batches_per_execution" in ran.output


def test_batches_that_lie_uploaded_are_the_same_in_the_same_order(trained: Run) -> None:
    """What the tier of these knobs says, by every loss of a training."""
    loader = "DataLoader(TensorDataset(torch.arange(25600.0).sin().view(800, 32), DATA[:][1] * 0), 16, shuffle=True)"
    loop = SHOWN.replace("LOADER", loader)
    sizes = {"loader_prefetch_size": 2, "device_prefetch_size": 3}
    plain, ahead = ([*re.findall(r"^LOSS .*$", trained(loop, c, mode="apply").output, re.M)] for c in ({}, sizes))
    assert len(plain) == 150 and ahead == plain


def test_what_is_not_known_again_is_left_alone(trained: Run) -> None:
    """Whose batches a loader of the script's own passes on shows only while it trains, and not where it is made."""
    ran = trained(SHOWN.replace("LOADER", "Wrapped()"))
    assert "wraps a loader of the script's" in ran.facts["left_out"]["device_prefetch_size"], ran.output


SLOW = """
    net, optimizer = make({width})
    class Slow(Dataset):
        def __len__(self):
            return 100_000
        def __getitem__(self, place):
            time.sleep({item_s})
            return torch.ones(32), 0
    for x, y in DataLoader(Slow(), batch_size=8):
        x, y = x.to("xla"), y.to("xla")
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        torch_xla.sync()
"""


@pytest.mark.timed
def test_the_wait_for_data_is_what_the_device_waits(trained: Run) -> None:
    """It runs behind the loop: a loader that takes 8 ms holds nothing up where the graph takes several times that."""
    bound = measured(trained(SLOW.format(width=16, item_s=0.004), window={"min_s": 1.0}))
    assert bound.data_wait_share is not None and bound.data_wait_share > 0.8
    hidden = measured(trained(SLOW.format(width=300_000, item_s=0.001), window={"min_s": 2.0, "max_s": 4.0}))
    assert hidden.data_wait_share is not None and hidden.data_wait_share < 0.1


def test_new_shapes_and_values_that_are_read_are_remarked(trained: Run) -> None:
    loop = """
        net, optimizer = make()
        for step in range(100_000):
            rows = 8 + step // 20
            x, y = torch.ones(rows, 32).to("xla"), torch.zeros(rows, dtype=torch.int64).to("xla")
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            print(loss.item())
    """
    ran = trained(loop)
    assert any("XLA compiled" in remark for remark in ran.facts["remarks"]), ran.facts["remarks"]
    assert any("values were read on the host" in remark for remark in ran.facts["remarks"])
    compiled = ran.of("compile")[0]
    assert compiled["graphs"] > 2 and compiled["seconds"] > 0


def test_one_new_shape_is_no_change_from_step_to_step(trained: Run) -> None:
    """As where an epoch ends with a smaller batch: half a second after the first steps, in a window of two."""
    loop = """
        net, optimizer = make()
        due = None
        for step in range(100_000):
            if step == 20:
                due = time.monotonic() + 0.5
            rows = 16
            if due and time.monotonic() >= due:
                rows, due = 8, None
            x, y = torch.ones(rows, 32).to("xla"), torch.zeros(rows, dtype=torch.int64).to("xla")
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            torch_xla.sync()
    """
    remarks = trained(loop, window={"min_s": 2.0}).facts["remarks"]
    [remark] = [each for each in remarks if "XLA compiled" in each]
    assert remark.startswith("XLA compiled 1 graph while the training was measured: it met a shape or number that")


def test_a_script_that_trains_on_the_cpu_is_refused(trained: Run) -> None:
    loop = """
        net = nn.Linear(32, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for x, y in DataLoader(DATA, batch_size=1):
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    """
    [failure] = trained(loop).of("failure")
    assert failure["reason"] == "unsupported" and "trains on cpu, not on xla" in failure["detail"]
