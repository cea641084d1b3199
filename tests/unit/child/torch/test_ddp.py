"""DistributedDataParallel's options: what a script gives is known, what a config sets is read back from the reducer.

The process group has one rank, and its reducers say that they have two: what several ranks train by these options is in
tests/differential/test_ddp_knobs.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.ddp_models import SEARCHING, plain, train, two_ranks
from support.torch_trials import begin
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tuner.child.patches import unpatch_all
from tuner.child.session import Session
from tuner.child.torch import ddp
from tuner.child.torch.parts import EXCHANGES

__all__ = ["begin", "two_ranks"]

Begin = Callable[..., Any]
pytestmark = pytest.mark.filterwarnings("ignore:Grad strides do not match")  # of one column, or one row
WRITTEN = {
    "ddp_static_graph": False, "ddp_bucket_view": False, "ddp_bucket_mb": 25, "ddp_communication": "default",
}  # fmt: skip


class Branching(nn.Module):  # type: ignore[misc]  # torch's own types are Any here
    """Two layers, of which each call takes one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.taken = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)]), 0

    def forward(self, x: Any) -> Any:
        return self.layers[self.taken](x)


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({}, {}),
        (
            {"gradient_as_bucket_view": True, "bucket_cap_mb": 5, "static_graph": True},
            {"ddp_bucket_view": True, "ddp_bucket_mb": 5, "ddp_static_graph": True},
        ),
        ({"bucket_cap_mb": 0.5}, {"ddp_bucket_mb": 0.5}),
    ],
    ids=["left", "given", "half"],
)
def test_what_the_script_gives_is_as_written(begin: Begin, options: dict[str, Any], changes: dict[str, Any]) -> None:
    trial = begin()
    train(DistributedDataParallel(plain(), **options))
    facts = trial.end()
    assert {knob: facts["as_written"][knob] for knob in WRITTEN} == {**WRITTEN, **changes}
    assert facts["gradient_bytes"] == 4 * (4 * 8 + 8 + 8 + 1)
    assert facts["left_out"]["ddp_static_graph"] == ddp.NO_SEARCH


@pytest.mark.parametrize("made", [True, False], ids=["made", "not made"])
def test_without_such_a_module_that_trains_there_is_nothing_to_turn(begin: Begin, made: bool) -> None:
    trial = begin()
    train(plain())
    if made:
        DistributedDataParallel(plain())
    facts = trial.end()
    assert not {*WRITTEN} & {*facts["as_written"], *facts["left_out"]}


def _in_halves() -> None:
    train(DistributedDataParallel(plain().to(torch.bfloat16)), dtype=torch.bfloat16)


def _with_its_own_hook() -> None:
    model = DistributedDataParallel(plain())
    model.register_comm_hook(None, lambda state, bucket: _done(bucket.buffer()))
    train(model)


def _done(tensor: Any) -> Any:
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


def _with_its_own_sizes() -> None:
    if "bucket_cap_mb_list" not in inspect.signature(DistributedDataParallel.__init__).parameters:
        pytest.skip("this PyTorch has no sizes of single buckets")
    train(DistributedDataParallel(plain(), bucket_cap_mb_list=[1, 2]))


def _with_two_kinds() -> None:
    train(DistributedDataParallel(plain()), DistributedDataParallel(plain(), gradient_as_bucket_view=True))


def _keeping_gradients() -> None:
    model, kept = DistributedDataParallel(plain()), list[Any]()
    train(model, before=lambda step: kept.extend(p.grad for p in model.parameters() if step))


def _keeping_detached_gradients() -> None:
    model, kept = DistributedDataParallel(plain()), list[Any]()

    def keep(step: int) -> None:
        kept[:] = [p.grad.detach() for p in model.parameters() if step]

    train(model, before=keep)


def _keeping_those_of_the_second() -> None:
    first, second, kept = DistributedDataParallel(plain()), DistributedDataParallel(plain()), list[Any]()
    train(first, second, before=lambda step: kept.extend(p.grad.data for p in second.parameters() if step))


def _in_memory_of_its_own() -> None:
    model = DistributedDataParallel(plain())
    flat, begin = torch.zeros(sum(p.numel() for p in model.parameters())), 0
    for parameter in model.parameters():
        parameter.grad = flat[begin : begin + parameter.numel()].view_as(parameter)
        begin += parameter.numel()
    for _ in range(4):
        flat.zero_()
        model(torch.ones(8, 4)).sum().backward()
        for parameter in model.parameters():
            parameter.data.sub_(0.01 * parameter.grad)


def _joining() -> None:
    model = DistributedDataParallel(plain())
    with model.join():
        train(model)


def _keeping_the_last_one() -> None:
    model, kept = DistributedDataParallel(plain()), list[Any]()

    def keep(step: int) -> None:
        kept[:] = [p.grad for p in model.parameters() if step][-1:]

    train(model, before=keep)


def _searching() -> None:
    train(DistributedDataParallel(Branching(), **SEARCHING))


def _changing() -> None:
    """After another one, whose end makes PyTorch tell of no further one whether its graph is static."""
    DistributedDataParallel(Branching(), **SEARCHING)
    inner = Branching()

    def change(step: int) -> None:
        inner.taken = step % 2

    train(DistributedDataParallel(inner, **SEARCHING), before=change)


def _deferring() -> None:
    model = DistributedDataParallel(Branching(), **SEARCHING)
    train(model, steps=2)
    with model.no_sync():
        model(torch.ones(8, 4)).sum().backward()


def _accumulating() -> None:
    """Every other backward is without an exchange: what is said of unused parameters is another thing there."""
    model = DistributedDataParallel(Branching(), **SEARCHING)
    for _ in range(4):
        with model.no_sync():
            model(torch.ones(8, 4)).sum().backward()
        train(model, steps=1)


@pytest.mark.parametrize(
    ("run", "knob", "why"),
    [
        (_in_halves, "ddp_communication", ddp.COARSE),
        (_with_its_own_hook, "ddp_communication", ddp.OWN_HOOK),
        (_with_its_own_sizes, "ddp_bucket_mb", ddp.OWN_BUCKETS),
        (_with_two_kinds, "ddp_bucket_view", ddp.DIFFER),
        (_keeping_gradients, "ddp_bucket_view", ddp.KEEPS),
        (_keeping_detached_gradients, "ddp_bucket_view", ddp.KEEPS),
        (_keeping_those_of_the_second, "ddp_bucket_view", ddp.KEEPS),
        (_in_memory_of_its_own, "ddp_bucket_view", ddp.KEEPS),
        (_joining, "ddp_communication", ddp.JOINS),
        (_keeping_the_last_one, "ddp_bucket_view", None),
        (_searching, "ddp_static_graph", None),
        (_changing, "ddp_static_graph", ddp.CHANGES),
        (_deferring, "ddp_static_graph", ddp.DEFERS),
        (_accumulating, "ddp_static_graph", ddp.DEFERS),
    ],
)
def test_a_knob_is_left_out_where_it_would_train_otherwise(
    begin: Begin, run: Callable[[], None], knob: str, why: str | None
) -> None:
    trial = begin()
    run()
    facts = trial.end()
    assert facts["left_out"].get(knob) == why
    assert knob in facts["as_written"]


@pytest.mark.parametrize(
    ("knob", "value", "given"),
    [
        ("ddp_static_graph", True, SEARCHING),
        ("ddp_bucket_view", True, {"gradient_as_bucket_view": False}),
        ("ddp_communication", "bf16", {}),
        ("ddp_communication", "default", {}),
    ],
)
def test_what_the_config_asks_for_is_at_work(begin: Begin, knob: str, value: Any, given: dict[str, Any]) -> None:
    trial = begin({knob: value})
    model = DistributedDataParallel(module=Branching(), **{**SEARCHING, **given})
    train(model)
    facts = trial.end()
    assert trial.evidence(knob) == ("verified", "")
    assert {name: facts["as_written"][name] for name in WRITTEN} == WRITTEN, "what the script gives, all the same"
    assert [(p.grad is None) for p in model.parameters()] == [False, False, True, True], "what is unused stays so"


def test_a_hook_of_the_scripts_own_stays(begin: Begin) -> None:
    trial = begin({"ddp_communication": "bf16"})
    _with_its_own_hook()
    trial.end()
    assert trial.evidence("ddp_communication") == ("not applicable", ddp.OWN_HOOK)


def test_sizes_of_the_scripts_own_stay(begin: Begin) -> None:
    trial = begin({"ddp_bucket_mb": 100})
    _with_its_own_sizes()
    trial.end()
    assert trial.evidence("ddp_bucket_mb") == ("not applicable", ddp.OWN_BUCKETS)


def test_a_hook_that_cannot_be_registered_is_told_and_the_training_goes_on(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise TypeError("no hooks here")

    monkeypatch.setattr(DistributedDataParallel, "register_comm_hook", refuse)
    trial = begin({"ddp_communication": "bf16"})
    train(DistributedDataParallel(plain()))
    trial.end()
    assert trial.evidence("ddp_communication") == ("contradicted", "TypeError: no hooks here")


def test_a_training_without_such_a_module_has_nothing_for_them(begin: Begin) -> None:
    trial = begin({"ddp_bucket_mb": 1})
    train(plain())
    trial.end()
    assert trial.evidence("ddp_bucket_mb") == ("not applicable", ddp.NOT_MADE)


def test_an_applied_run_tells_where_they_are_at_work(begin: Begin) -> None:
    config = {"ddp_bucket_view": True, "ddp_communication": "bf16"}
    trial = begin(config, mode="apply")
    watch = trial.adapter.watches.ddp
    assert not watch.effect("ddp_bucket_view").sites
    train(DistributedDataParallel(plain()), DistributedDataParallel(plain()))
    assert {knob: watch.effect(knob).sites for knob in config} == dict.fromkeys(config, 2)


@pytest.mark.parametrize("mode", ["trial", "apply"])
def test_convolutions_are_laid_before_their_buckets_are_made(begin: Begin, mode: str) -> None:
    begin({"channels_last": True}, mode=mode)
    model = nn.Sequential(nn.Conv2d(2, 2, 3))
    DistributedDataParallel(model)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_to_the_script_the_class_is_as_it_was(begin: Begin) -> None:
    original = DistributedDataParallel.__init__
    signature = inspect.signature(DistributedDataParallel)
    begin({"ddp_bucket_mb": 1})
    assert DistributedDataParallel.__init__ is not original
    assert inspect.signature(DistributedDataParallel) == signature
    with pytest.raises(TypeError, match="no_such_option"):
        DistributedDataParallel(plain(), no_such_option=1)
    unpatch_all()
    assert DistributedDataParallel.__init__ is original


def test_in_one_process_nothing_is_patched(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "ranks", 1)
    original = DistributedDataParallel.__init__
    begin()
    assert DistributedDataParallel.__init__ is original


class Around(nn.Module):  # type: ignore[misc]  # torch's own types are Any here
    """Calls such a module within."""

    def __init__(self) -> None:
        super().__init__()
        self.net = DistributedDataParallel(plain())

    def forward(self, x: Any) -> Any:
        return self.net(x)


def test_a_batch_is_not_split_around_the_exchange_of_gradients(begin: Begin) -> None:
    """Each part would be a call of its own, and ranks decide by themselves which batches they split."""
    trial = begin({"batch_size": 4, "grad_accumulation": 2})
    train(Around())
    trial.end()
    assert trial.evidence("grad_accumulation") == ("contradicted", EXCHANGES)
    again = begin()
    train(Around())
    assert again.end()["left_out"]["grad_accumulation"] == EXCHANGES


class Halves(nn.Module):  # type: ignore[misc]  # as above
    """Two networks of one model, each of which is wrapped by itself; ``nn.Conv2d`` is in the first one only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = DistributedDataParallel(nn.Conv2d(3, 8, 3))
        self.decoder = DistributedDataParallel(nn.ConvTranspose2d(8, 3, 3), find_unused_parameters=True)

    def forward(self, x: Any) -> Any:
        return self.decoder(self.encoder(x))


def test_what_is_wrapped_beside_a_convolution_is_laid_with_it(begin: Begin) -> None:
    """The weights of the second one were laid after its buckets had been made: its gradients were mixed up."""
    learned: list[list[Any]] = []
    x = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for config in ({}, {"channels_last": True}):
        trial, model = begin(config), Halves()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), x).backward()
            optimizer.step()
        trial.end()
        learned.append([weight.detach() for weight in model.parameters()])
    for one, other in zip(*learned, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)
