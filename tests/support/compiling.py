"""A compiler that takes no time: it runs graphs as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """``torch.compile`` with a backend that runs graphs as they are: the shapes that each was made for."""
    shapes: list[Any] = []
    whole = torch.compile

    def as_it_is(graph: Any, inputs: Any) -> Any:
        shapes.append([tuple(each.shape) for each in inputs if isinstance(each, torch.Tensor)])
        return make_boxed_func(graph.forward)

    def compile(function: Any, **how: Any) -> Any:
        backend = aot_autograd(fw_compiler=as_it_is, bw_compiler=lambda graph, _: make_boxed_func(graph.forward))
        return whole(function, backend=backend, **{name: each for name, each in how.items() if name != "mode"})

    monkeypatch.setattr(torch, "compile", compile)
    return shapes
