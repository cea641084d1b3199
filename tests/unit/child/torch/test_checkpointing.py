"""Blocks that are computed again in the backward: the training stays as it is, and what couldn't is left alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from support.torch_trials import begin
from torch import nn
from torch.utils.checkpoint import checkpoint

from tuner.child.torch import checkpointing
from tuner.child.torch.parts import CHANGES, HOOKED

__all__ = ["begin"]

Begin = Callable[..., Any]
BLOCKS = 3
CONFIG = {"checkpointing": True}
AGAIN = ("verified", f"{BLOCKS} of {BLOCKS} blocks were computed again in a backward")


class Block(nn.Module):  # type: ignore[misc]  # torch's own types are Any here
    """A residual block with dropout; what inherits does something more in ``extra``."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.back = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Any, scale: Any = None) -> Any:
        x = self.extra(x)
        wide = nn.functional.dropout(torch.relu(self.wide(self.norm(x))), 0.2, self.training)
        return x + self.back(wide) * (1.0 if scale is None else scale)

    def extra(self, x: Any) -> Any:
        return x


class Model(nn.Module):  # type: ignore[misc]
    """Blocks of that class in a list, and a head; ``call`` is how it calls a block."""

    def __init__(self, block: type[Block] = Block, call: Callable[[Any, Any], Any] = lambda b, x: b(x)) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(BLOCKS))
        self.head, self.call = nn.Linear(16, 1), call

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = self.call(block, x)
        return self.head(x)


def trained(make: Callable[[], nn.Module], steps: int = 8, rows: int = 8) -> tuple[list[float], list[Any]]:
    """The losses of a training, and at last all that it holds, with where PyTorch's generator stands."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses: list[float] = []
    for _ in range(steps):
        x = torch.randn(rows, 16)
        loss = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, [*(v.clone() for v in model.state_dict().values()), torch.get_rng_state()]


def same(one: tuple[list[float], list[Any]], other: tuple[list[float], list[Any]]) -> bool:
    return one[0] == other[0] and all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))


@pytest.mark.parametrize(
    "config",
    [{}, {"precision": "bf16"}, {"batch_size": 2, "grad_accumulation": 4}, {"optimizer": "foreach"}],
    ids=["alone", "bf16", "parts", "foreach"],
)
@pytest.mark.parametrize(
    "call",
    [lambda b, x: b(x), lambda b, x: b(x=x, scale=x.new_full((), 0.5)), lambda b, x: b(x, scale=0.5)],
    ids=["positional", "named", "mixed"],
)
def test_the_training_is_the_same_bit_for_bit(
    begin: Begin, config: dict[str, Any], call: Callable[[Any, Any], Any]
) -> None:
    """Dropout draws the same numbers again, and what the script draws later isn't moved."""
    written = {"as_written": {"batch_size": 8}}
    begin(config, **written)
    plain = trained(lambda: Model(call=call))
    trial = begin({**config, **CONFIG}, **written)
    assert same(trained(lambda: Model(call=call)), plain)
    trial.end()
    assert trial.evidence("checkpointing") == AGAIN


def kept_bytes(make: Callable[[], nn.Module]) -> int:
    """What a forward keeps for the backward, beside parameters and what a checkpoint throws away."""
    kept: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        if not isinstance(tensor, nn.Parameter):
            kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    torch.manual_seed(0)
    model = make()
    for _ in range(2):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(torch.randn(64, 16)).sum().backward()
    return sum(kept.values())


def test_what_lies_within_blocks_is_not_kept(begin: Begin) -> None:
    begin()
    plain = kept_bytes(Model)
    begin(CONFIG)
    assert kept_bytes(Model) < 0.3 * plain


def test_the_script_as_written_is_watched_and_left_as_it_is(begin: Begin) -> None:
    plain = trained(Model)
    trial = begin()
    assert same(trained(Model), plain)
    facts = trial.end()
    assert facts["as_written"]["checkpointing"] is False and "checkpointing" not in facts["left_out"]


class Normed(Block):
    def __init__(self) -> None:
        super().__init__()
        self.running = nn.BatchNorm1d(16)

    def extra(self, x: Any) -> Any:
        return self.running(x)


class InstanceNormed(Block):
    """Another layer with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.running = nn.InstanceNorm1d(16, track_running_stats=True)

    def extra(self, x: Any) -> Any:
        return self.running(x.unsqueeze(2).expand(-1, -1, 2)).mean(2) + x


class Counting(Block):
    calls = 0

    def extra(self, x: Any) -> Any:
        self.calls = self.calls + 1
        return x


class InBuffer(Block):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def extra(self, x: Any) -> Any:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0))
        return x


class ByPython(Block):
    def extra(self, x: Any) -> Any:
        return x * random.random()


class ByNumpy(Block):
    def extra(self, x: Any) -> Any:
        return x * float(numpy.random.random())


class InPlace(Block):
    def extra(self, x: Any) -> Any:
        return x.mul_(0.5)


class Hooked(Block):
    def __init__(self) -> None:
        super().__init__()
        self.wide.register_forward_hook(_looked)


def _looked(module: Any, given: Any, gave: Any) -> None:
    """A hook of the script's."""


class Cache:
    """What a model adds to with each call."""


class Cached(Block):
    def forward(self, x: Any, cache: Any = None) -> Any:
        return super().forward(x)


def own_cache() -> nn.Module:
    return Model(Cached, lambda block, x: block(x, cache=Cache()))


def own(*, reentrant: bool) -> Callable[[], nn.Module]:
    return lambda: Model(call=lambda block, x: checkpoint(block, x.requires_grad_(), use_reentrant=reentrant))


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 1))


REFUSED: list[tuple[Callable[[], nn.Module], str]] = [
    (lambda: Model(Normed), checkpointing.STATISTICS), (lambda: Model(Counting), checkpointing.KEEPS),
    (lambda: Model(InBuffer), checkpointing.KEEPS), (lambda: Model(ByPython), checkpointing.DRAWS),
    (lambda: Model(ByNumpy), checkpointing.DRAWS), (lambda: Model(InPlace, lambda b, x: b(x + 0)), CHANGES),
    (lambda: Model(Hooked), HOOKED), (own_cache, checkpointing.GIVEN),
    (own(reentrant=True), checkpointing.OWN), (own(reentrant=False), checkpointing.OWN),
    (two_layers, checkpointing.NO_BLOCKS), (lambda: Model(InstanceNormed), checkpointing.STATISTICS),
]  # fmt: skip
NAMES = [
    "batch-norm", "counts", "buffer", "random", "numpy", "in-place", "hooked", "cache", "reentrant", "checkpointed",
    "no-blocks", "instance-norm",
]  # fmt: skip


@pytest.mark.parametrize(("make", "reason"), REFUSED, ids=NAMES)
def test_what_would_train_otherwise_is_left_out(begin: Begin, make: Callable[[], nn.Module], reason: str) -> None:
    plain = _drawing(lambda: trained(make))
    trial = begin()
    assert same(_drawing(lambda: trained(make)), plain), "it is watched as it is"
    facts = trial.end()
    assert facts["left_out"]["checkpointing"] == reason
    assert "checkpointing" not in facts["as_written"]


@pytest.mark.parametrize(
    ("make", "reason"),
    [REFUSED[place] for place in (0, 6, 7, 10, 11)],
    ids=["batch-norm", "hooked", "cache", "no-blocks", "instance-norm"],
)
def test_a_profile_for_another_script_changes_nothing_of_it(
    begin: Begin, make: Callable[[], nn.Module], reason: str
) -> None:
    """What shows before a block is called: running statistics would be another script's else."""
    plain = trained(make)
    trial = begin(CONFIG)
    assert same(trained(make), plain)
    trial.end()
    assert trial.evidence("checkpointing") == ("not applicable", reason)


def unfreezing() -> list[Any]:
    """All that a training holds in whose fifth step batch norm is unfrozen."""
    torch.manual_seed(0)
    model: Any = Model(Normed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(8):
        for block in model.blocks:
            block.running.train(step >= 4)
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
    return [each.clone() for each in model.state_dict().values()]


@pytest.mark.parametrize("mode", ["trial", "apply"])
def test_batch_norm_that_is_unfrozen_later_takes_each_batch_once(begin: Begin, mode: str) -> None:
    plain = unfreezing()
    trial = begin(CONFIG, mode=mode, as_written={"batch_size": 8})
    assert all(torch.equal(one, other) for one, other in zip(unfreezing(), plain, strict=True))
    if mode == "trial":
        trial.end()
        assert trial.evidence("checkpointing") == ("not applicable", checkpointing.STATISTICS)


def test_buffers_that_a_block_was_seen_to_change_are_changed_once(begin: Begin) -> None:
    """The call that showed it is computed again all the same: its first one can't be told from such that set up."""
    plain = trained(lambda: Model(InBuffer), steps=2)
    trial = begin(CONFIG)
    buffers = [v for v in trained(lambda: Model(InBuffer), steps=2)[1] if v.shape == (16,)]
    trial.end()
    assert trial.evidence("checkpointing") == ("not applicable", checkpointing.KEEPS)
    assert len(buffers) == len([v for v in plain[1] if v.shape == (16,)])


def _drawing(train: Callable[[], tuple[list[float], list[Any]]]) -> tuple[list[float], list[Any]]:
    random.seed(0)
    numpy.random.seed(0)
    return train()


def test_what_is_changed_in_place_before_the_backward_is_no_silent_matter(begin: Begin) -> None:
    """PyTorch tells it: a gradient would be that of other numbers."""

    def call(block: Any, x: Any) -> Any:
        given = x + 0
        gave = block(given)
        given.detach().mul_(2.0)
        return gave

    begin(CONFIG)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        trained(lambda: Model(Cached, call))


def test_blocks_that_nothing_calls_are_said_to_be_unseen(begin: Begin) -> None:
    trial = begin(CONFIG)
    trained(lambda: Model(call=lambda block, x: block.forward(x)))
    trial.end()
    assert trial.evidence("checkpointing")[0] == "unverifiable"


def test_validation_and_copies_run_as_written(begin: Begin) -> None:
    import copy

    trial = begin(CONFIG)
    torch.manual_seed(0)
    model = Model()
    model(torch.randn(4, 16)).sum().backward()
    twin = copy.deepcopy(model)
    assert not any("_compiled_call_impl" in vars(block) for block in twin.blocks)
    with torch.no_grad():
        model.eval()
        model(torch.randn(4, 16))
    assert trial.adapter.watches.modules.checkpointing.sites == (BLOCKS, BLOCKS)


def test_a_run_says_that_it_is_in_effect(begin: Begin, capfd: pytest.CaptureFixture[str]) -> None:
    plain = trained(Model, steps=24)
    begin(CONFIG, mode="apply", as_written={"batch_size": 8})
    assert same(trained(Model, steps=24), plain)
    said = capfd.readouterr().err
    assert "in effect: checkpointing" in said and "NOT" not in said
