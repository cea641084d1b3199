"""What single layers of a model show: whether it convolves; and what is looked at in them while it is called."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch import nn

from tuner.child.torch.layer_looks import LayerLook, convolves

__all__ = ["begin"]

Begin = Callable[..., Any]


def _train(model: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("model", "does"),
    [
        (nn.Sequential(nn.Linear(8, 8), nn.LSTM(8, 8), nn.Embedding(4, 8)), False),
        (nn.TransformerEncoderLayer(8, 2), False),
        (nn.Conv1d(2, 2, 3), True),
        (nn.Sequential(nn.Linear(8, 8), nn.ConvTranspose3d(2, 2, 3)), True),
        (nn.LazyConv2d(4, 3), True),
        (nn.LazyLinear(4), False),
        (nn.ParameterDict({"kernel": nn.Parameter(torch.zeros(4, 2, 3, 3))}), True),
        (nn.ParameterDict({"positions": nn.Parameter(torch.zeros(1, 196, 768))}), False),
    ],
    ids=["recurrent", "attention", "1d", "transposed 3d", "lazy", "lazy linear", "a kernel", "positions"],
)
def test_a_convolution_is_seen(model: Any, does: bool) -> None:
    assert convolves(torch, model) is does


def test_cudnn_benchmark_is_left_out_without_a_convolution(begin: Begin) -> None:
    trial = begin()
    _train(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)))
    assert trial.end()["left_out"]["cudnn_benchmark"] == "no module that was called convolves"
    trial = begin()
    _train(nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 2, 3), nn.Flatten()))
    assert "cudnn_benchmark" not in trial.end()["left_out"]


def test_what_is_not_seen_of_a_model_leaves_cudnn_benchmark(begin: Begin) -> None:
    trial = begin()
    weight = torch.ones(8, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for _ in range(3):
        weight.square().mean().backward()
        optimizer.step()
    assert "cudnn_benchmark" not in trial.end()["left_out"]


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_what_convolves_without_gradients_leaves_cudnn_benchmark_and_nothing_else(
    begin: Begin, without: Callable[[], Any]
) -> None:
    """A frozen backbone gives features, and a head trains on them: most of the step may be spent in the former."""
    trial = begin()
    backbone, head = nn.Sequential(nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 2, 2), nn.Flatten()), nn.Linear(6, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
    for _ in range(3):
        with without():
            features = backbone(torch.randn(16, 8))
        head(features.clone()).square().mean().backward()
        optimizer.step()
    left_out = trial.end()["left_out"]
    assert "cudnn_benchmark" not in left_out
    assert left_out["channels_last"] == "the model has no two-dimensional convolution", "it would not be given to it"


class Copying(nn.Module):  # type: ignore[misc]  # PyTorch is not looked at
    """Computes with copies of its layers, as torch_xla's ``scan_layers`` does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
        self.copied: list[Any] = []

    def forward(self, x: Any) -> Any:
        self.copied.append(copy.deepcopy(self.layers))
        return self.layers(x) + self.copied[-1](x).detach()


class ByKeyword(nn.Module):  # type: ignore[misc]  # PyTorch is not looked at
    """Convolves by a function that it gives all by keyword, before anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.last = nn.Parameter(torch.ones(2, 2, 2, 2)), nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        images = nn.functional.conv2d(input=x.view(16, 2, 2, 2), weight=self.kernel)
        return self.last(torch.cat([images.flatten(1)] * 2, dim=1))


def test_a_batch_given_by_keyword_is_looked_at_in_a_graph() -> None:
    model = ByKeyword()
    look, graphs = LayerLook(torch, model, "cpu"), list[Any]()

    def backend(graph: Any, examples: object) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    compiled(torch.randn(16, 8))
    (graph,) = graphs
    look.graph(graph.graph.nodes)
    assert sum(look.layouts.values()) == 1 and look.dtype == "float32"


def test_layers_may_be_copied_while_they_are_looked_at(begin: Begin) -> None:
    """A hook would be copied with all that it holds, and a copy would be looked at like the layer."""
    trial, model = begin(), Copying()
    _train(model)
    assert trial.end()["as_written"]["precision"] == "fp32"
    used = [each for layers in (model.layers, *model.copied) for each in layers]
    assert len(model.copied) == 3
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in used)


def test_channels_last_is_for_what_has_four_dimensions(begin: Begin) -> None:
    """``Module.to`` would raise an error at the weights of a ``Conv3d`` in the same model."""

    class Both(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.flat, self.deep = nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.flat(x).mean() + self.deep(x.unsqueeze(2).expand(-1, -1, 3, -1, -1)).mean()

    trial = begin({"channels_last": True})
    model = Both()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 8, 8)).square().backward()
        optimizer.step()
    trial.end()
    assert model.flat.weight.is_contiguous(memory_format=torch.channels_last)
    assert model.deep.weight.is_contiguous()
    assert trial.evidence("channels_last")[0] == "verified"


def test_a_layer_that_gives_the_layout_back_is_told_as_that(begin: Begin) -> None:
    """Of models with InstanceNorm the script was said to set it back, which it doesn't."""
    trial = begin({"channels_last": True})
    model = nn.Sequential(nn.Conv2d(3, 4, 3), *(nn.Sequential(nn.InstanceNorm2d(4), nn.Conv2d(4, 4, 3)) for _ in "ab"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 16, 16)).square().mean().backward()
        optimizer.step()
    trial.end()
    evidence, reason = trial.evidence("channels_last")[:2]
    assert evidence == "contradicted" and "InstanceNorm" in reason and "script" not in reason
