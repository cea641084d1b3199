"""What a script compiles itself: which calls count, what becomes of their mode, and what is told of it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from support.compiling import backend
from support.torch_trials import begin
from torch import nn

__all__ = ["backend", "begin"]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
Begin = Callable[..., Any]


@pytest.fixture
def modes(backend: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modes that PyTorch is given, one a call; it compiles in no time."""
    given: list[str] = []
    quick = torch.compile

    def compile(function: Any, **how: Any) -> Any:
        given.append(how.get("mode") or "default")
        return quick(function, **how)

    monkeypatch.setattr(torch, "compile", compile)
    return given


class Parts(nn.Sequential):  # type: ignore[misc]  # torch's own types are Any here
    """Of a class of torch.nn itself ``module.compile()`` compiles nothing."""

    def forward(self, x: Any) -> Any:
        for part in self:
            x = part(x)
        return x


def _model() -> Any:
    torch.manual_seed(0)
    return Parts(Parts(nn.Linear(8, 8)), Parts(nn.Linear(8, 8), nn.Tanh()), Parts(nn.Linear(8, 1)))


def _train(model: Any, *, call: Callable[..., Any] | None = None, steps: int = 14) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        loss = (call or model)(torch.randn(16, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def _anew(model: Any) -> Any:
    return torch.compile(model)


def _in_place(model: Any) -> Any:
    model.compile()
    return model


def _its_forward(model: Any) -> Any:
    model.forward = torch.compile(model.forward)
    return model


def _its_parts(model: Any) -> Any:
    for part in model:
        part.compile()
    return model


WAYS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "torch.compile": (_anew, 1), "module.compile": (_in_place, 1), "its forward": (_its_forward, 1),
    "its parts": (_its_parts, 3),
}  # fmt: skip


def told(trial: Any) -> tuple[Any, Any]:
    end = trial.end()
    return end["as_written"].get("compile_mode"), end["left_out"].get("compile_mode")


# As written


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_the_script_compiles_has_a_mode(begin: Begin, modes: list[str], way: str) -> None:
    trial = begin()
    _train(WAYS[way][0](_model()))
    assert told(trial) == ("default", None)
    assert modes == ["default"] * WAYS[way][1]


def test_a_mode_as_written_is_told(begin: Begin, modes: list[str]) -> None:
    trial = begin()
    _train(torch.compile(_model(), mode="max-autotune-no-cudagraphs", dynamic=True))
    assert told(trial) == ("max-autotune-no-cudagraphs", None)


def _two(**how: Any) -> Any:
    torch.compile(_model())
    return torch.compile(_model(), **how)


def _beside(model: Any) -> Any:
    torch.compile(lambda x: x.sin())(torch.ones(2))
    torch.compile(nn.MSELoss())(torch.ones(2), torch.zeros(2))
    torch.compile(_model().requires_grad_(False))(torch.ones(2, 8))
    return model


LEFT_OUT: dict[str, tuple[Callable[[], Any], str | None]] = {
    "nothing": (_model, None),
    "functions and what doesn't train": (lambda: _beside(_model()), None),
    "switched off": (lambda: torch.compile(_model(), disable=True), None),
    "a backend": (
        lambda: torch.compile(_model(), backend="aot_eager"), "the script compiles with the backend aot_eager",
    ),
    "options": (
        lambda: torch.compile(_model(), options={"max_autotune": True}),
        "the script gives the compiler options of its own",
    ),
    "two modes": (
        lambda: _two(mode="max-autotune"),
        "the script compiles its models in several modes: default, max-autotune",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LEFT_OUT)
def test_what_has_no_one_mode_is_left_as_written(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    whole = torch.compile

    def quick(model: Any, **how: Any) -> Any:
        return whole(model, backend="eager", disable=how.get("disable", False))

    monkeypatch.setattr(torch, "compile", quick)
    make, why = LEFT_OUT[what]
    trial = begin()
    _train(make())
    mode, left_out = told(trial)
    assert left_out == why
    assert (mode is None) == (why is None), "of what there is nothing to turn nothing is told"


def test_two_models_of_one_mode_have_that(begin: Begin, modes: list[str]) -> None:
    """As a GAN's."""
    trial = begin()
    _train(_two())
    assert told(trial) == ("default", None)


def test_a_decorator_that_is_given_a_model_counts(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = begin()
    given = torch.compile(mode="default", backend="eager")(_model())
    _train(given)
    assert told(trial)[1] == "the script compiles with the backend eager"


def test_what_is_compiled_and_never_runs_so_is_left_as_written(
    begin: Begin, modes: list[str]
) -> None:
    trial = begin()
    with torch._dynamo.config.patch(disable=True):
        _train(torch.compile(_model()))
    assert told(trial)[1] == "nothing was compiled"


# Turned
OTHERS = [pytest.param(*pair, marks=pytest.mark.slow) for pair in product([*WAYS][:-1], ["max-autotune-no-cudagraphs"])]
MODES = [*product(WAYS, ("off", "default")), ("its parts", "max-autotune-no-cudagraphs"), *OTHERS]


@pytest.mark.parametrize(("way", "wanted"), MODES)
def test_the_mode_of_the_scripts_calls_is_turned(begin: Begin, modes: list[str], way: str, wanted: str) -> None:
    make, sites = WAYS[way]
    begin()
    plain = _train(_model())
    trial = begin({"compile_mode": wanted})
    modes.clear()
    assert _train(make(_model())) == pytest.approx(plain, rel=1e-6)
    trial.end()
    assert trial.evidence("compile_mode")[0] == "verified", trial.evidence("compile_mode")
    assert modes == ([] if wanted == "off" else [wanted] * sites)
    assert trial.log.of("knob")[0]["sites_seen"] == trial.log.of("knob")[0]["sites_changed"] == sites


def test_other_arguments_of_the_call_stay(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def compile(model: Any, **how: Any) -> Any:
        given.append(how)
        return model

    monkeypatch.setattr(torch, "compile", compile)
    begin({"compile_mode": "reduce-overhead"})
    torch.compile(model=_model(), dynamic=True, fullgraph=True, mode="max-autotune")
    torch.compile(nn.MSELoss(), mode="max-autotune")
    assert given == [{"dynamic": True, "fullgraph": True, "mode": "reduce-overhead"}, {"mode": "max-autotune"}]


def test_what_is_not_compiled_is_to_the_script_what_it_was(begin: Begin, backend: list[Any]) -> None:
    """Names of weights, the module within, its attributes, copies: with as little compiled."""
    begin()
    compiled = torch.compile(_model())
    begin({"compile_mode": "off"})
    given = torch.compile(_model())
    assert type(given) is type(compiled)
    assert list(given.state_dict()) == list(compiled.state_dict())
    given.load_state_dict(compiled.state_dict())
    assert isinstance(given._orig_mod, Parts) and len(given) == 3
    assert given.eval() is given and not given._orig_mod.training
    x = torch.ones(2, 8)
    for one in (given, copy.deepcopy(given), pickle.loads(pickle.dumps(given))):
        assert torch.equal(one(x), compiled._orig_mod(x))
        assert list(one.state_dict()) == list(compiled.state_dict())
    assert not backend


def test_hooks_of_what_is_not_compiled_run(begin: Begin) -> None:
    begin({"compile_mode": "off"})
    given, ran = torch.compile(_model()), list[str]()
    given.register_forward_hook(lambda *args: ran.append("outer"))
    given._orig_mod.register_forward_hook(lambda *args: ran.append("inner"))
    given(torch.ones(2, 8))
    assert ran == ["inner", "outer"]


def test_a_function_that_the_script_compiles_takes_the_model_in(begin: Begin) -> None:
    """In one graph: PyTorch's own way to switch a module off would end ``fullgraph`` with an error."""
    begin({"compile_mode": "off"})
    model = torch.compile(_model(), backend="inductor")
    loss_of = torch.compile(lambda x: model(x).square().mean(), backend="eager", fullgraph=True)
    loss_of(torch.ones(2, 8)).backward()
    assert model._orig_mod[0][0].weight.grad is not None


def test_compiled_code_of_a_function_is_not_told_from_the_models(begin: Begin, backend: list[Any]) -> None:
    trial = begin({"compile_mode": "off"})
    scaled = torch.compile(lambda x: x * 2.0 + 1.0)

    class Model(nn.Module):  # type: ignore[misc]  # likewise
        def __init__(self) -> None:
            super().__init__()
            self.layers = _model()

        def forward(self, x: Any) -> Any:
            return scaled(self.layers(x))

    _train(torch.compile(Model()))
    assert len(backend) == 1, "it stays compiled"
    trial.end()
    assert trial.evidence("compile_mode")[0] == "unverifiable"


def test_compiled_code_that_runs_all_the_same_contradicts_off(begin: Begin, backend: list[Any]) -> None:
    whole = torch.compile
    trial = begin({"compile_mode": "off"})
    model = torch.compile(_model())
    model._orig_mod[0].forward = whole(model._orig_mod[0].forward)  # where no patch of ours sees it
    _train(model)
    trial.end()
    assert trial.evidence("compile_mode") == ("contradicted", "what the script compiles runs compiled all the same")


def test_code_that_the_compiler_gives_up_contradicts_a_mode(begin: Begin, backend: list[Any]) -> None:
    class Worded(nn.Module):  # type: ignore[misc]  # likewise
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.word = _model(), ""

        def forward(self, x: Any) -> Any:
            return self.layers(x) * len(self.word)

    trial = begin({"compile_mode": "max-autotune-no-cudagraphs"})
    worded = Worded()
    compiled = torch.compile(worded)

    def call(x: Any) -> Any:
        worded.word += "x"
        return compiled(x)

    with torch._dynamo.config.patch(recompile_limit=1):
        _train(compiled, call=call)
    trial.end()
    assert trial.evidence("compile_mode") == ("contradicted", "the model runs without what was compiled")


@pytest.mark.parametrize(("wanted", "told"), [("off", "verified"), ("default", "unverifiable")])
def test_what_is_called_in_another_way_is_told_by_what_was_compiled(
    begin: Begin, backend: list[Any], wanted: str, told: str
) -> None:
    """As Lightning's trainer calls a module that it is given compiled."""
    trial = begin({"compile_mode": wanted})
    model = _model()
    called = torch.compile(model).dynamo_ctx(model.forward)
    _train(model, call=called)
    assert bool(backend) is (wanted == "default")
    assert trial.end()["left_out"].get("compile_mode") is None
    assert trial.evidence("compile_mode")[0] == told


def test_a_script_that_compiles_nothing_has_no_mode_to_turn(begin: Begin) -> None:
    trial = begin({"compile_mode": "off"})
    _train(_model())
    trial.end()
    assert trial.evidence("compile_mode") == ("not applicable", "the script doesn't compile its model itself")


@pytest.mark.parametrize("wanted", ["off", "default"])
def test_a_batch_is_computed_in_parts_beside_another_mode(begin: Begin, backend: list[Any], wanted: str) -> None:
    """What is noted of the calls is nothing that the model keeps from one to the next."""
    trial = begin({"compile_mode": wanted, "grad_accumulation": 2})
    _train(torch.compile(_model()))
    trial.end()
    assert [trial.evidence(knob)[0] for knob in ("compile_mode", "grad_accumulation")] == ["verified"] * 2


@pytest.mark.parametrize("wanted", ["off", "default"])
def test_a_forward_that_is_called_past_its_module_has_the_mode(begin: Begin, backend: list[Any], wanted: str) -> None:
    trial = begin({"compile_mode": wanted})
    model = _model()
    _train(model, call=torch.compile(model.forward))
    assert bool(backend) is (wanted == "default")
    trial.end()
    assert trial.evidence("compile_mode")[0] == "verified", trial.evidence("compile_mode")


@pytest.mark.parametrize("wanted", ["off", "default"])
def test_ranks_train_what_is_compiled_within_or_around(
    begin: Begin, backend: list[Any], tmp_path: Path, wanted: str
) -> None:
    parallel: Any = nn.parallel.DistributedDataParallel
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/met", rank=0, world_size=1)
    try:
        for within in (True, False):
            trial = begin({"compile_mode": wanted})
            _train(parallel(torch.compile(_model())) if within else torch.compile(parallel(_model())))
            trial.end()
            assert trial.evidence("compile_mode")[0] == "verified", trial.evidence("compile_mode")
    finally:
        torch.distributed.destroy_process_group()


def test_a_backend_of_its_own_contradicts_a_mode(begin: Begin) -> None:
    trial = begin({"compile_mode": "off"})
    _train(torch.compile(_model(), backend="eager"))
    trial.end()
    assert trial.evidence("compile_mode") == ("contradicted", "the script compiles with the backend eager")


# CUDA graphs, whose outputs the next replay writes over


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("written", "wanted"), [(None, "reduce-overhead"), ("reduce-overhead", "reduce-overhead"), (None, "default")]
)
def test_outputs_outlive_a_replay_that_the_script_was_not_written_for(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, in_place: bool, written: str | None, wanted: str
) -> None:
    """What stands in for a replay gives the same tensor each time, as a CUDA graph does."""
    held, made = torch.zeros(2, 1), _model()

    def compile(model: Any, **how: Any) -> Any:
        def replay(x: Any) -> Any:
            return held.copy_(x.mean())

        if not isinstance(model, nn.Module):
            return replay
        compiled = torch.compiler.disable(model)
        compiled.forward = replay
        return compiled

    monkeypatch.setattr(torch, "compile", compile)
    begin({"compile_mode": wanted})
    if in_place:
        made.compile(mode=written)
    else:
        made = torch.compile(made, mode=written)
    with torch.no_grad():
        first = made(torch.ones(2, 8))
        made(torch.ones(2, 8) * 2)
    copied = written != wanted == "reduce-overhead"
    assert torch.equal(first, torch.full((2, 1), 1.0 if copied else 2.0))
