"""DistributedDataParallel's options: what a script gives is known, what a config sets is read back from the reducer.

The process group has one rank, and its reducers say that they have two: what several ranks train by these options is in
tests/differential/test_ddp_knobs.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.torch_trials import begin
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tuner.child.patches import unpatch_all
from tuner.child.session import Session
from tuner.child.torch import ddp
from tuner.child.torch.parts import EXCHANGES

__all__ = ["begin"]

Begin = Callable[..., Any]
pytestmark = pytest.mark.filterwarnings("ignore:Grad strides do not match")  # of one column, or one row
WRITTEN = {
    "ddp_static_graph": False, "ddp_bucket_view": False, "ddp_bucket_mb": 25, "ddp_communication": "default",
}  # fmt: skip
SEARCHING = {"find_unused_parameters": True}


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As far as anybody asks."""
    told = DistributedDataParallel._get_ddp_logging_data
    monkeypatch.setattr(
        DistributedDataParallel, "_get_ddp_logging_data", lambda module: {**told(module), "world_size": 2}
    )
    monkeypatch.setattr(Session, "ranks", 2)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


class Branching(nn.Module):  # type: ignore[misc]  # torch's own types are Any here
    """Two layers, of which each call takes one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.taken = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)]), 0

    def forward(self, x: Any) -> Any:
        return self.layers[self.taken](x)


def train(
    *models: Any, steps: int = 4, before: Callable[[int], None] = lambda step: None,
    dtype: torch.dtype = torch.float32,
) -> None:  # fmt: skip
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)
    for step in range(steps):
        before(step)
        optimizer.zero_grad()
        sum(model(torch.ones(8, 4, dtype=dtype)).sum() for model in models).backward()
        optimizer.step()


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))


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


class Large(nn.Module):  # type: ignore[misc]  # torch's own types are Any here
    """Four layers with gradients of 1 MiB each, and a first one of next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 512)
        self.layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))

    def forward(self, x: Any) -> Any:
        return self.layers(self.first(x)).tanh()


@pytest.mark.parametrize("value", [1, 2, 100])
@pytest.mark.parametrize("given", [{"bucket_cap_mb": 3}, {"bucket_cap_mb": 3, **SEARCHING}], ids=["plain", "searched"])
def test_buckets_of_the_size_that_the_config_asks_for(begin: Begin, value: int, given: dict[str, Any]) -> None:
    """What is searched for unused parameters keeps the buckets that it began with."""
    trial = begin({"ddp_bucket_mb": value})
    train(DistributedDataParallel(Large(), **given), steps=6)
    facts = trial.end()
    assert trial.evidence("ddp_bucket_mb") == ("verified", "")
    assert facts["as_written"]["ddp_bucket_mb"] == 3, "what the script gives, all the same"


@pytest.mark.parametrize(("given", "value"), [({"bucket_cap_mb": 25}, 100), ({"bucket_cap_mb": 1.5}, 2)])
def test_a_size_that_makes_the_buckets_of_the_script_is_told(begin: Begin, given: dict[str, Any], value: int) -> None:
    trial = begin({"ddp_bucket_mb": value})
    train(DistributedDataParallel(Large(), **given), steps=6)
    trial.end()
    assert trial.evidence("ddp_bucket_mb") == ("not applicable", ddp.SAME_BUCKETS)
    assert trial.adapter.watches.ddp.effect("ddp_bucket_mb").reason == ddp.SAME_BUCKETS


def test_the_first_bucket_of_a_script_that_gives_no_size_is_small(begin: Begin) -> None:
    """PyTorch's own, of 1 MiB: with the 25 that it takes for the others all of them are one."""
    trial = begin({"ddp_bucket_mb": 25})
    train(DistributedDataParallel(Large()), steps=6)
    trial.end()
    assert trial.evidence("ddp_bucket_mb") == ("verified", "")


def test_a_size_that_the_reducer_does_not_keep_to_is_told(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on with the one bucket that it began with."""
    told = DistributedDataParallel._get_ddp_logging_data
    monkeypatch.setattr(
        DistributedDataParallel, "_get_ddp_logging_data", lambda module: {**told(module), "has_rebuilt_buckets": 0}
    )
    trial = begin({"ddp_bucket_mb": 1})
    train(DistributedDataParallel(Large(), bucket_cap_mb=3), steps=6)
    trial.end()
    evidence, why = trial.evidence("ddp_bucket_mb")
    assert evidence == "contradicted" and why.startswith("its largest bucket holds 4.0 MiB"), why


@pytest.mark.parametrize("mode", ["trial", "apply"])
def test_buckets_of_layers_that_are_frozen_once_they_are_wrapped_are_told(begin: Begin, mode: str) -> None:
    trial = begin({"ddp_bucket_mb": 1}, mode=mode)
    model = DistributedDataParallel(Large(), bucket_cap_mb=3, **SEARCHING)
    model.module.first.requires_grad_(False)
    train(model, steps=6)
    assert trial.adapter.watches.ddp.effect("ddp_bucket_mb").sites == 1
    if mode == "trial":
        trial.end()
        assert trial.evidence("ddp_bucket_mb") == ("verified", "")


def test_an_applied_run_does_not_accuse_what_cannot_be_told(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    told = DistributedDataParallel._get_ddp_logging_data
    nothing = dict.fromkeys(("bucket_sizes", "rebuilt_bucket_sizes"), "")
    monkeypatch.setattr(DistributedDataParallel, "_get_ddp_logging_data", lambda module: {**told(module), **nothing})
    trial = begin({"ddp_bucket_mb": 1}, mode="apply")
    model = DistributedDataParallel(Large(), bucket_cap_mb=3)
    train(model, steps=6)
    effect = trial.adapter.watches.ddp.effect("ddp_bucket_mb")
    assert (effect.sites, effect.reason, effect.is_unseen) == (0, ddp.NOT_SHOWN, True)


class Embedded(Large):
    """What is looked up has a sparse gradient of 2 MiB, or of next to nothing."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 4, sparse=True)

    def forward(self, x: Any) -> Any:
        return super().forward(self.table(x[:, 0].long()))


@pytest.mark.parametrize(
    ("value", "rows", "given"), [(1, 10, {}), (2, 131072, SEARCHING), (100, 131072, {})], ids=["1", "2", "100"]
)
def test_a_sparse_gradient_has_a_bucket_of_its_own(begin: Begin, value: int, rows: int, given: dict[str, Any]) -> None:
    trial = begin({"ddp_bucket_mb": value})
    train(DistributedDataParallel(Embedded(rows), bucket_cap_mb=3, **given), steps=6)
    trial.end()
    assert trial.evidence("ddp_bucket_mb") == ("verified", "")
    again = begin({"ddp_bucket_mb": value})
    train(DistributedDataParallel(Embedded(rows), bucket_cap_mb=value, **given), steps=6)
    again.end()
    assert again.evidence("ddp_bucket_mb") == ("not applicable", ddp.SAME_BUCKETS)


def test_options_may_be_given_by_their_places(begin: Begin) -> None:
    trial = begin({"ddp_bucket_mb": 1})
    model = DistributedDataParallel(Large(), None, None, 0, None, True, None, 5)
    train(model)
    trial.end()
    assert trial.evidence("ddp_bucket_mb") == ("verified", "")


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
