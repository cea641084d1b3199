"""What PyTorch's adapter says on a CUDA card, on a stand-in whose tensors lie in the host's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from support.torch_trials import begin

from tuner.child.devices.base import Device
from tuner.child.devices.cpu import CpuDevice
from tuner.child.devices.cuda import CudaDevice
from tuner.child.records import Memory

__all__ = ["begin"]

Begin = Callable[..., Any]
GIB = 2**30


class Card(CpuDevice):
    """As a CUDA card answers; its allocator had to be cleared ``retries`` times."""

    kind = CudaDevice.kind
    torch_optimizer_default = CudaDevice.torch_optimizer_default
    retries = 0
    captures = False
    resets = 0

    def torch_is_capturing(self, torch: ModuleType) -> bool:
        return self.captures

    def torch_note_peaks(self, torch: ModuleType) -> None:
        self.resets += 1

    def torch_memory(self, torch: ModuleType, used_by_others: int) -> Memory:
        return Memory(GIB, GIB, total=8 * GIB, retries=self.retries)


def _train(trial: Any, device: Device, *, steps: int = 6) -> tuple[list[Any], list[Any]]:
    """Outputs that the script still holds at the end, and what they were when it got them."""
    trial.session.device = device
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held, copies = [], []
    for step in range(steps):
        held.append(model(torch.full((8, 4), float(step + 1))))
        copies.append(held[-1].detach().clone())
        optimizer.zero_grad()
        held[-1].sum().backward()
        optimizer.step()
    return held, copies


# Which implementation of an update is offered


@pytest.mark.parametrize(("device", "choices"), [(CpuDevice("cpu"), ["foreach", "fused"]), (Card("cuda:0"), ["fused"])])
def test_an_implementation_that_a_card_takes_by_itself_is_no_choice(
    begin: Begin, device: Device, choices: list[str]
) -> None:
    """PyTorch takes "foreach" on a card where nothing is asked for: a trial of it is one of the script as written."""
    trial = begin()
    _train(trial, device)
    facts = trial.end()
    assert facts["optimizer_choices"] == choices
    assert "optimizer" not in facts["left_out"]


# Memory that is nearly full


@pytest.mark.parametrize("retries", [0, 3])
def test_an_allocator_that_had_to_be_cleared_is_told_of(begin: Begin, retries: int) -> None:
    """The configuration fits, and yet is slower than with a little less: whoever reads the figures should know."""
    trial, card = begin(), Card("cuda:0")
    card.retries = retries
    _train(trial, card)
    facts = trial.end()
    [memory] = trial.log.of("memory")
    assert memory["retries"] == retries
    line = "the device's memory is nearly full: it had to be cleared 3 times to go on"
    told = [line] if retries else []
    assert [remark for remark in facts["remarks"] if "memory" in remark] == told
    assert [note["text"] for note in trial.log.of("note")] == told


@pytest.mark.parametrize("place", [torch.cuda, torch.cuda.memory], ids=lambda place: str(place.__name__))
def test_a_script_s_own_reset_of_peaks_is_noticed(begin: Begin, place: Any) -> None:
    """Else the memory that a trial takes would be that of its last epoch."""
    trial, card = begin(), Card("cuda:0")
    trial.session.device = card
    with contextlib.suppress(AssertionError, AttributeError, RuntimeError):  # no card is here
        place.reset_peak_memory_stats()
    assert card.resets == 1


# CUDA graphs


def test_nothing_is_looked_at_while_the_script_captures_its_step(begin: Begin) -> None:
    """A number that is read then ends the capture with an error. And nothing was computed: it is no step."""
    trial, card = begin(rotation=[{"compile": "default"}]), Card("cuda:0")
    trial.session.device = trial.adapter.watches.modules.kept_calls._device = card
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()

    step()
    item, card.captures = torch.Tensor.item, True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "item", lambda tensor: pytest.fail("a number is read"))
        patch.setattr(torch.Tensor, "__float__", lambda tensor: pytest.fail("a number is read"))
        patch.setattr(torch.Tensor, "tolist", lambda tensor: pytest.fail("numbers are read"))
        step()
    card.captures = False
    assert torch.Tensor.item is item and trial.steps == 1
    step()
    assert trial.steps == 2
    assert "CUDA graph" in trial.adapter.watches.modules.kept_calls.obstacle(model)


class CompiledFunction(torch.autograd.Function):  # type: ignore[misc]  # PyTorch declares it as Any
    """What the gradient of a compiled graph goes through, by its name in PyTorch."""

    @staticmethod
    def forward(ctx: Any, output: Any) -> Any:
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


class Graphs:
    """``torch.compile`` as on a card: a graph's next outputs lie where its last ones lay. ``skipped``: graphs that
    can't be replayed, as the compiler counts them.
    """

    def __init__(self, skipped: int = 0) -> None:
        self.skipped = skipped
        self.modes: list[str | None] = []

    def compile(self, function: Callable[..., Any], mode: str | None = None) -> Callable[..., Any]:
        import torch._dynamo.utils as dynamo

        self.modes.append(mode)
        dynamo.counters["stats"]["unique_graphs"] += 1
        dynamo.counters["inductor"]["cudagraph_skips"] += self.skipped
        last: list[Any] = []

        def replay(*args: Any, **kwargs: Any) -> Any:
            result: Any = CompiledFunction.apply(function(*args, **kwargs))
            for earlier in last:
                earlier.data.copy_(result.data)
            if mode == "reduce-overhead":
                last.append(result)
            return result

        return replay


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    made = Graphs()
    monkeypatch.setattr(torch, "compile", made.compile)
    return made


def test_outputs_that_the_script_holds_outlive_the_next_replay(begin: Begin, graphs: Graphs) -> None:
    """It may collect logits over an epoch, or subtract those of the last step."""
    held, copies = _train(begin({"compile": "reduce-overhead"}), Card("cuda:0"))
    assert graphs.modes == ["reduce-overhead"]
    for output, copy in zip(held, copies, strict=True):
        assert torch.equal(output, copy)


@pytest.mark.parametrize(
    ("mode", "skipped", "evidence"),
    [("reduce-overhead", 0, "verified"), ("reduce-overhead", 2, "contradicted"), ("default", 2, "verified")],
)
def test_a_mode_is_contradicted_where_its_graphs_are_not_replayed(
    begin: Begin, graphs: Graphs, mode: str, skipped: int, evidence: str
) -> None:
    """What is compiled without CUDA graphs is the default mode under another name."""
    graphs.skipped = skipped
    trial = begin({"compile": mode})
    _train(trial, Card("cuda:0"))
    trial.end()
    seen, reason = trial.evidence("compile")
    assert seen == evidence, reason
    if evidence == "contradicted":
        assert reason == "2 graphs can't be run as CUDA graphs, which is all that this mode adds"
