"""What is done to modules, and what is seen of them: checkpoints, number formats, layouts, the device that trains."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from support.torch_trials import begin

__all__ = ["begin"]

CHECKPOINTED = """
    import torch
    from torch.utils.checkpoint import checkpoint
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)

    class Part(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        def forward(self, x):
            return self.two(torch.relu(self.one(x)))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part, self.head = Part(), torch.nn.Linear(8, 1)
        def forward(self, x):
            return self.head(INSIDE)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(512, 8), torch.randn(512, 1))
    for epoch in range(1000):
        for x, y in DataLoader(data, batch_size=16):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(OUTSIDE, y).backward()
            optimizer.step()
"""
PLACES = {
    "part of the model": ("checkpoint(lambda z: self.part(z) * 2, x, use_reentrant=REENTRANT)", "model(x)"),
    "the whole model": ("self.part(x)", "checkpoint(lambda z: model(z) * 1, x, use_reentrant=REENTRANT)"),
}


@pytest.mark.parametrize(
    "place", [pytest.param(place, marks=[pytest.mark.slow] if "whole" in place else []) for place in PLACES]
)
@pytest.mark.parametrize(
    "config",
    [{"precision": "bf16"}, pytest.param({"precision": "bf16", "compile": "default"}, marks=pytest.mark.slow)],
    ids=str,
)
def test_what_a_checkpoint_runs_again_runs_as_it_did(
    run_child: Callable[..., Any], write_script: Callable[..., Path], place: str, config: dict[str, Any]
) -> None:
    """PyTorch raises ``CheckpointError`` where what is computed again in the backward has another format."""
    inside, outside = PLACES[place]
    text = CHECKPOINTED.replace("INSIDE", inside).replace("OUTSIDE", outside).replace("REENTRANT", "False")
    ran = run_child(write_script(text), config)
    assert not ran.of("exception"), ran.of("exception")
    assert ran.evidence("precision") == "verified"


@pytest.mark.slow
def test_a_reentrant_checkpoint_within_a_model_trains_in_the_format(
    run_child: Callable[..., Any], write_script: Callable[..., Path]
) -> None:
    inside, outside = PLACES["part of the model"]
    text = CHECKPOINTED.replace("INSIDE", inside).replace("OUTSIDE", outside).replace("REENTRANT", "True")
    ran = run_child(write_script(text), {"precision": "bf16"})
    assert not ran.of("exception"), ran.of("exception")
    assert ran.evidence("precision") == "verified"


def test_gradients_through_a_checkpoint_are_those_without_one(begin: Callable[..., Any]) -> None:
    """In bf16, with the same weights: the part that is computed again gives what it gave."""
    from torch.utils.checkpoint import checkpoint

    begin({"precision": "bf16"})
    torch.manual_seed(0)
    part, head = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()), torch.nn.Linear(8, 1)
    x = torch.randn(16, 8)
    gradients = []
    for again in (False, True):
        part.zero_grad()
        head(checkpoint(part, x, use_reentrant=False) if again else part(x)).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in part.parameters() if parameter.grad is not None])
    assert len(gradients[0]) == 2
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_a_script_that_trains_elsewhere_is_refused_by_name(
    run_child: Callable[..., Any], write_script: Callable[..., Path]
) -> None:
    """Its figures would be those of another device."""
    script = CHECKPOINTED.replace("INSIDE", "self.part(x)").replace("OUTSIDE", "model(x)")
    ran = run_child(write_script(script), device="cuda:0")
    failure = ran.of("failure")[0]
    assert failure["reason"] == "unsupported"
    assert failure["detail"].startswith("the script trains on cpu, not on cuda:0")
    assert not ran.of("knob")


RAW = """
    import torch
    weight = torch.randn(8, 1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01) if OPTIMIZER else None
    for step in range(100_000):
        loss = (torch.randn(16, 8) @ weight).square().mean()
        loss.backward()
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()
        else:
            with torch.no_grad():
                weight -= 0.01 * weight.grad
                weight.grad = None
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer", [True, False], ids=["an optimizer", "by hand"]
)
def test_a_loop_on_tensors_that_trains_elsewhere_is_refused_by_name(
    run_child: Callable[..., Any], write_script: Callable[..., Path], optimizer: bool
) -> None:
    """No module is called: what is updated, or else the loss, tells the device."""
    script = write_script(RAW.replace("OPTIMIZER", str(optimizer)))
    failure = run_child(script, device="cuda:0").of("failure")[0]
    assert failure["reason"] == "unsupported"
    assert failure["detail"].startswith("the script trains on cpu, not on cuda:0")
    assert not run_child(script).of("failure")


DETECTOR = """
    import torch
    from torch.utils.data import DataLoader
    torch.manual_seed(0)

    class Detector(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Conv2d(n, m, 3) for n, m in ((3, 8), (8, 8), (8, 1)))
        def forward(self, images):
            x = torch.stack([image * 1 for image in images["images"]])
            for layer in self.layers:
                x = layer(x)
            return x.mean((1, 2, 3))

    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = [(torch.randn(3, 12, 12), torch.randn(())) for _ in range(256)]
    for epoch in range(1000):
        for x, y in DataLoader(data, batch_size=8):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model({"images": list(x)}), y).backward()
            optimizer.step()
"""


@pytest.mark.parametrize("asked", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_layout_of_a_model_that_stacks_its_own_batch_is_that_of_most_convolutions(
    run_child: Callable[..., Any], write_script: Callable[..., Path], asked: bool
) -> None:
    """A detector is given a list of images: only what its own layers hand on shows the layout of the weights."""
    ran = run_child(write_script(DETECTOR), {"channels_last": asked})
    assert ran.evidence("channels_last") == "verified"


@pytest.mark.parametrize(
    ("settings", "asked", "evidence"),
    [
        ("pass", "fp32", "verified"),
        pytest.param("torch.set_float32_matmul_precision('medium')", "fp32", "contradicted", marks=pytest.mark.slow),
        ("torch.backends.mkldnn.matmul.fp32_precision = 'bf16'", "fp32", "contradicted"),
        pytest.param("pass", "tf32", "contradicted", marks=pytest.mark.slow),
        pytest.param(
            "torch.set_float32_matmul_precision('highest')", "bf16-math", "contradicted", marks=pytest.mark.slow
        ),
    ],
)
def test_float32_products_are_told_by_how_they_are_rounded(
    run_child: Callable[..., Any], write_script: Callable[..., Path], settings: str, asked: str, evidence: str
) -> None:
    """A layer's output is float32 either way: what PyTorch is set to tells, in the old words and in the new ones."""
    text = CHECKPOINTED.replace("INSIDE", "self.part(x)").replace("OUTSIDE", "model(x)")
    text = text.replace("torch.manual_seed(0)", f"torch.manual_seed(0); {settings}")
    ran = run_child(write_script(text), {"precision": asked})
    assert not [note for note in ran.of("note") if "observation failed" in note["text"]]
    assert ran.evidence("precision") == evidence


TRACED = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(512, 3, 8, 8), torch.randint(0, 4, (512,)))
    for epoch in range(1000):
        for x, y in DataLoader(data, batch_size=16):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if epoch < 2:
                traced = torch.jit.trace(model, x, strict=True)  # its own check compares graphs and outputs
                assert not any(node.kind() == "prim::PythonOp" for node in traced.graph.nodes())
                torch.testing.assert_close(traced(x), model(x))
"""


@pytest.mark.parametrize(
    "config", [pytest.param({}, marks=pytest.mark.slow), {"precision": "bf16", "channels_last": True}], ids=str
)
def test_a_model_is_traced_as_under_plain_python(
    run_child: Callable[..., Any], write_script: Callable[..., Path], config: dict[str, Any]
) -> None:
    """As by ``torch.jit.trace``, or TensorBoard's ``add_graph``."""
    ran = run_child(write_script(TRACED), config)
    assert not ran.of("exception"), ran.of("exception")
    assert all(ran.evidence(knob) == "verified" for knob in config)


class _Meeting(torch.nn.Module):  # type: ignore[misc]  # PyTorch's classes aren't typed here
    """Calls what it is given in the middle of its forward, and notes the format of its first layer's answer."""

    def __init__(self, in_between: Callable[[], object]) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        self.in_between = in_between
        self.formats: list[Any] = []

    def forward(self, x: Any) -> Any:
        out = self.first(x)
        self.formats.append(out.dtype)
        self.in_between()
        return self.second(out)


@pytest.mark.parametrize("shared", [False, True], ids=["a model each", "one model"])
def test_models_that_train_in_several_threads_at_once_all_have_the_precision(
    begin: Callable[..., Any], shared: bool
) -> None:
    begin({"precision": "bf16"}, mode="apply")
    both_are_inside = threading.Barrier(2)
    one = _Meeting(lambda: both_are_inside.wait(20))
    models = [one, one if shared else _Meeting(one.in_between)]

    def train(model: Any) -> None:
        for _ in range(3):
            model(torch.randn(8, 4)).square().mean().backward()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(train, models))
    assert {each for model in models for each in model.formats} == {torch.bfloat16}
    assert one.first.weight.grad is not None


def test_threads_of_a_models_own_call_parts_of_it(begin: Callable[..., Any]) -> None:
    """Layers, and the copies that DataParallel makes of its module: they are called as the model calls them."""
    trial = begin({"precision": "bf16"}, mode="apply")
    layer, replica = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)._replicate_for_data_parallel()
    replica.weight, replica.bias = torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Parameter(torch.ones(4))
    pool = ThreadPoolExecutor(1)
    called: list[Any] = []
    model = _Meeting(lambda: called.extend(pool.submit(each, torch.ones(2, 4)).result() for each in (layer, replica)))
    model.layer = layer
    with pool:
        model(torch.randn(8, 4)).mean().backward()
    # A thread has an autocast of its own: PyTorch's default, as under the script's own autocast.
    assert [out.dtype for out in called] == [torch.float32, torch.float32]
    assert list(trial.adapter.watches.modules.roots) == [model]


def _outputs() -> dict[str, Callable[[Any], Any]]:
    import dataclasses
    from collections import namedtuple

    pair = namedtuple("pair", ["logits", "aux"])
    output = dataclasses.make_dataclass("output", ["logits"])
    return {"a named tuple": lambda y: pair(y, None), "a dataclass": output}


@pytest.mark.parametrize("kind", _outputs())
def test_a_loss_is_taken_in_float32_of_whatever_a_model_gives(begin: Callable[..., Any], kind: str) -> None:
    give = _outputs()[kind]

    class Model(torch.nn.Module):  # type: ignore[misc]  # PyTorch isn't typed here
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 1)

        def forward(self, x: Any) -> Any:
            return give(self.linear(x))

    begin({"precision": "bf16"})
    assert Model()(torch.randn(4, 8)).logits.dtype == torch.float32


COMPILED_STEPS = """
    import torch
    from torch._dynamo.utils import counters
    from torch.utils.data import DataLoader, TensorDataset
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    @torch.compile(backend="eager")
    def step():
        optimizer.step()

    @torch.compile(backend="eager", fullgraph=True)
    def loss_of(x, y):
        return torch.nn.functional.mse_loss(model(x), y)

    for x, y in DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=16):
        optimizer.zero_grad()
        loss_of(x, y).backward()
        step()
    print(counters["stats"], counters["frames"], sum(counters["graph_break"].values()))
"""


@pytest.mark.slow
def test_a_step_of_the_script_is_compiled_as_under_plain_python(
    run_child: Callable[..., Any], write_script: Callable[..., Path]
) -> None:
    """In as many frames, graphs and breaks, and without a warning about a call of ours that Dynamo doesn't know.

    The first break is of another kind: the compiler leaves our step alone, and goes on in PyTorch's own.
    """
    script = write_script(COMPILED_STEPS)
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120)
    ran = run_child(script, window={"warmup_s": 30.0})
    assert ran.returncode == 0, ran.output
    assert ran.output.splitlines()[-1] == plain.stdout.strip()
    assert "Dynamo does not know" not in ran.output


class OnDevices(torch.nn.Module):  # type: ignore[misc]
    """Notes where it lies, as timm's tasks do, by what a tensor without dimensions to lay out becomes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 4, 3))

    def to(self, *args: Any, **kwargs: Any) -> Any:
        self.device = torch.empty(0).to(*args, **kwargs).device
        return super().to(*args, **kwargs)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def test_a_model_whose_own_way_of_moving_knows_no_layouts_is_laid_out(begin: Callable[..., Any]) -> None:
    """It failed in the trial of ``channels_last``, as timm's training did."""
    trial = begin({"channels_last": True})
    model = OnDevices()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.rand(2, 3, 8, 8)).mean().backward()
        optimizer.step()
    trial.end()
    assert trial.evidence("channels_last")[0] == "verified"


@pytest.mark.parametrize("laid", [True, False])
def test_a_layout_of_the_scripts_own_is_no_knob(begin: Callable[..., Any], laid: bool) -> None:
    """A study tried ``channels_last=false``, which was contradicted: nothing keeps a script from laying its model."""
    trial = begin()
    model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last if laid else torch.contiguous_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.rand(2, 3, 8, 8)).mean().backward()
        optimizer.step()
    facts = trial.end()
    assert ("channels_last" in facts["left_out"]) is laid and facts["as_written"]["channels_last"] is laid
