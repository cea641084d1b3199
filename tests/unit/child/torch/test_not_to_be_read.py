"""What a look would break: tensors without values, data that raise errors, calls that a CUDA graph is noted down of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import Trial, begin
from torch._subclasses import FakeTensorMode
from torch.utils.data import DataLoader, Dataset

from tuner.child.torch.written_tokens import WrittenTokens

__all__ = ["begin"]

Begin = Callable[..., Trial]
pytestmark = pytest.mark.usefixtures("torch_settings_kept")


class Writer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.words(tokens))


@pytest.fixture
def writer(begin: Begin) -> tuple[Trial, Writer]:
    """In a trial: it trains, and is then asked."""
    trial, model = begin(), Writer()
    model(torch.randint(0, 50, (3, 4))).sum().backward()
    return trial, model.eval()


def test_tokens_without_values_of_their_own_are_passed_on_unread(writer: tuple[Trial, Writer]) -> None:
    """Each ended a script, or a trial, with PyTorch's error."""
    _, model = writer
    with torch.no_grad():
        assert torch.func.vmap(model)(torch.randint(0, 50, (3, 4, 5))).shape == (3, 4, 5, 50)
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert model(torch.randint(0, 50, (3, 4))).shape == (3, 4, 50)


def test_nothing_is_read_while_a_cuda_graph_is_noted_down(
    writer: tuple[Trial, Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look waits for the device, which ends that with an error."""
    trial, model = writer
    reads: list[object] = []
    integers = WrittenTokens._integers

    def read(watch: WrittenTokens, *given: Any) -> Any:
        reads.append(given)
        return integers(watch, *given)

    monkeypatch.setattr(WrittenTokens, "_integers", read)
    monkeypatch.setattr(trial.session.device, "torch_is_capturing", lambda torch: True)
    with torch.no_grad():
        model(torch.randint(0, 50, (3, 4)))
        assert not reads
        monkeypatch.setattr(trial.session.device, "torch_is_capturing", lambda torch: False)
        model(torch.randint(0, 50, (3, 4)))
        assert reads


class Unloaded(Dataset[Any]):  # type: ignore[misc]
    """With a property that only its own methods may ask for yet."""

    @property
    def tensors(self) -> Any:
        raise RuntimeError("load() first")

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return torch.ones(4) * index


def test_no_property_of_the_data_is_asked_for(begin: Begin) -> None:
    trial, model = begin(), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(Unloaded(), batch_size=4):
        model(batch).square().mean().backward()
        optimizer.step()
    assert trial.steps == 4
