"""What of a model is compiled, and for which shapes."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.compiling import backend
from support.torch_trials import begin
from torch import nn
from torch.utils.checkpoint import checkpoint

from tuner.child.torch.compiler import CompilerCounts
from tuner.child.torch.compiling import Shapes, repeated_blocks, with_compiled_blocks

__all__ = ["backend", "begin"]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
Begin = Callable[..., Any]


class Block(nn.Module):  # type: ignore[misc]  # torch's own types are Any here
    """A residual block with a branch of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def forward(self, x: Any) -> Any:
        return x + self.branch(x)


class Model(nn.Module):  # type: ignore[misc]  # likewise
    """``depth`` blocks between two layers."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def _train(model: nn.Module, sizes: list[int]) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for size in sizes:
        loss = model(torch.randn(size, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def _model(depth: int = 4) -> Model:
    torch.manual_seed(0)
    return Model(depth)


# Which blocks a model repeats


def test_the_blocks_of_a_list_are_found_and_not_their_parts() -> None:
    model = _model()
    assert repeated_blocks(torch, model) == list(model.blocks)


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(8, 8),
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)),
        nn.Sequential(Block(), nn.Linear(8, 1)),
        Model(1),
        Model(3).requires_grad_(False),
    ],
    ids=["a layer", "plain layers", "one block", "one in a list", "frozen"],
)
def test_what_is_not_repeated_is_no_block(model: nn.Module) -> None:
    assert repeated_blocks(torch, model) == []


def test_stages_have_blocks_of_their_own_and_blocks_within_blocks_are_one() -> None:
    stages = nn.Sequential(nn.Sequential(Block(), Block()), nn.Sequential(Block(), Block(), nn.ReLU()))
    assert len(repeated_blocks(torch, stages)) == 4
    outer = nn.ModuleList(Model(2) for _ in range(3))
    assert repeated_blocks(torch, outer) == list(outer)


# Trials


def test_blocks_of_one_kind_are_compiled_once_and_train_alike(begin: Begin, backend: list[Any]) -> None:
    begin()
    plain = _train(_model(), [16] * 6)
    trial = begin({"compile": "regional"})
    losses = _train(_model(), [16] * 6)
    assert losses == pytest.approx(plain, rel=1e-5)
    assert len(backend) == 1, "four blocks, one graph"
    trial.end()
    assert trial.evidence("compile") == ("verified", "1 graphs, 0 breaks")
    assert [record["sites_seen"] for record in trial.log.of("knob")] == [4]


class Numbered(Block):
    """One that PyTorch compiles anew for each number, and after eight of them for none."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Any) -> Any:
        return x + self.branch(x) * (1 + self.number / 100)


class Breaking(Block):
    """One that PyTorch makes no graph of."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # likewise
    def forward(self, x: Any) -> Any:
        return super().forward(x)


def _of(blocks: list[nn.Module]) -> Model:
    model = _model(1)
    model.blocks = nn.ModuleList(blocks)
    return model


def _train_beside_what_is_compiled(model: nn.Module, steps: int) -> None:
    """The script's own graphs are no evidence of the model's."""
    with torch.no_grad():
        torch.compile(lambda x: x.sin() * 2)(torch.ones(3))
    _train(model, [16] * steps)


@pytest.mark.usefixtures("backend")
def test_blocks_that_the_compiler_gives_up_are_not_verified(begin: Begin, capfd: pytest.CaptureFixture[str]) -> None:
    trial = begin({"compile": "regional"})
    _train_beside_what_is_compiled(_of([Breaking() for _ in range(4)]), 6)
    trial.end()
    assert trial.evidence("compile") == ("contradicted", "none of 4 blocks runs compiled")
    begin({"compile": "regional"}, mode="apply", as_written={"batch_size": 16})
    _train(_of([Breaking() for _ in range(4)]), [16] * 24)
    assert "NOT in effect: compile (none of 4 blocks runs compiled)" in capfd.readouterr().err


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.usefixtures("backend")
def test_those_of_many_blocks_that_run_compiled_are_told(begin: Begin, capfd: pytest.CaptureFixture[str]) -> None:
    """PyTorch gives a code up once it is compiled eight times, and here thrice."""
    with torch._dynamo.config.patch(recompile_limit=3):
        trial = begin({"compile": "regional"})
        _train(_of([Numbered(number) for number in range(5)]), [16] * 6)
        trial.end()
        evidence, reason = trial.evidence("compile")
        assert evidence == "verified"
        given_up = "and some code given up after too many compilations"
        assert reason == f"3 graphs, 0 breaks, {given_up}; 3 of 5 blocks run compiled"
        [report] = trial.log.of("knob")
        assert (report["sites_seen"], report["sites_changed"]) == (5, 3)
        begin({"compile": "regional"}, mode="apply", as_written={"batch_size": 16})
        _train(_of([Numbered(number) for number in range(5)]), [16] * 24)
        assert "in effect: compile (3 places)" in capfd.readouterr().err


@pytest.mark.usefixtures("backend")
def test_a_model_that_the_compiler_gives_up_is_not_verified(begin: Begin) -> None:
    trial = begin({"compile": "default"})
    _train_beside_what_is_compiled(Breaking(), 6)
    trial.end()
    assert trial.evidence("compile") == ("contradicted", "the model runs without what was compiled")


class Wrapped:
    """What a model may give: nobody but the script knows what it holds."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


class Hiding(nn.Module):  # type: ignore[misc]  # likewise
    """Computes as it was compiled or not: what it gives doesn't show it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)

    def forward(self, x: Any) -> Wrapped:
        return Wrapped(self.linear(x))


@pytest.mark.usefixtures("backend")
def test_what_shows_no_gradient_is_not_verified(begin: Begin) -> None:
    trial, model = begin({"compile": "default"}), Hiding()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(16, 8)).tensor.sum().backward()
        optimizer.step()
    trial.end()
    assert trial.evidence("compile")[0] == "unverifiable"


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize(("mode", "graphs"), [pytest.param("regional", 1, marks=pytest.mark.slow), ("dynamic", 1)])
def test_it_is_in_effect_under_autotune_run(
    begin: Begin, backend: list[Any], capfd: pytest.CaptureFixture[str], mode: str, graphs: int
) -> None:
    begin({"compile": mode}, mode="apply", as_written={"batch_size": 8})
    _train(_model(), [8, 9, 10] * 8)
    assert "autotune: after 20 steps in effect: compile" in capfd.readouterr().err
    assert len(backend) == graphs + (mode == "regional"), "blocks take further shapes as PyTorch compiles by itself"


@pytest.mark.slow  # 2 s beside three others
def test_an_applied_run_says_that_there_are_no_blocks(begin: Begin, capfd: pytest.CaptureFixture[str]) -> None:
    begin({"compile": "regional"}, mode="apply", as_written={"batch_size": 8})
    _train(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), [8] * 24)
    assert "NOT in effect: compile (no module with parameters that repeats blocks was" in capfd.readouterr().err


@pytest.mark.slow  # 3 s beside three others
def test_layers_of_pytorchs_own_are_compiled(begin: Begin, backend: list[Any]) -> None:
    """``Module.compile`` leaves them alone without a word."""

    class Encoder(nn.Module):  # type: ignore[misc]  # likewise
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

        def forward(self, x: Any) -> Any:
            return self.encoder(x[None])

    trial = begin({"compile": "regional"})
    _train(Encoder(), [16] * 4)
    trial.end()
    assert len(backend) == 2, "the first layer is given what needs no gradient, the others what does"
    assert trial.evidence("compile")[0] == "verified"


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_block_that_is_checkpointed_runs_the_same_way_in_the_backward(
    begin: Begin, backend: list[Any], *, reentrant: bool
) -> None:
    """Its dropout would draw another mask where one way is compiled, and the gradients were of another forward."""

    class Blocks(nn.Module):  # type: ignore[misc]  # likewise
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = checkpoint(layer, x.requires_grad_(), use_reentrant=reentrant)
            return x

    trial = begin({"compile": "regional"})
    _train_beside_what_is_compiled(Blocks(), 4)
    trial.end()
    assert (len(backend) > 1) is not reentrant
    assert trial.evidence("compile")[0] == ("contradicted" if reentrant else "verified")


def test_a_model_that_repeats_nothing_is_not_compiled_by_blocks(begin: Begin, backend: list[Any]) -> None:
    trial = begin({"compile": "regional"})
    _train(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), [16] * 4)
    facts = trial.end()
    assert trial.evidence("compile") == ("contradicted", "nothing was compiled")
    assert facts["compile_choices"] == []


@pytest.mark.parametrize(
    ("sizes", "choices"), [([16] * 6, ["regional"]), ([16, 16, 9], ["regional"]), ([4, 5, 6], ["regional", "dynamic"])]
)
def test_what_is_offered_follows_from_the_model_and_its_shapes(
    begin: Begin, sizes: list[int], choices: list[str]
) -> None:
    """A last batch that is shorter is no reason."""
    trial = begin()
    _train(_model(), sizes)
    assert list(trial.end()["compile_choices"]) == choices


@pytest.mark.parametrize(
    ("sizes", "graphs", "evidence"),
    [([4, 5, 6, 7, 8], 1, "verified"), ([4] * 5, 1, "unverifiable")],
    ids=["shapes vary", "one shape"],
)
def test_one_graph_takes_all_shapes(
    begin: Begin, backend: list[Any], sizes: list[int], graphs: int, evidence: str
) -> None:
    trial = begin({"compile": "dynamic"})
    _train(_model(), sizes)
    trial.end()
    assert len(backend) == graphs
    assert trial.evidence("compile")[0] == evidence


@pytest.mark.parametrize(("graphs", "recompiled"), [(1, False), (2, False), (3, True), (9, True)])
def test_a_graph_for_each_further_shape_is_not_dynamic(
    monkeypatch: pytest.MonkeyPatch, graphs: int, recompiled: bool
) -> None:
    shapes = Shapes()
    for size, counted in ((2, 1), (3, 1), (4, graphs)):
        monkeypatch.setattr("tuner.child.torch.compiler.counts", lambda counted=counted: CompilerCounts(counted))
        shapes.given(torch, [torch.ones(size)], compiled=True)
        shapes.compiled_call_ended()
    assert shapes.recompiled() is recompiled


# What is put into a model


def test_blocks_that_are_compiled_leave_copies_and_checkpoints_as_they_were(backend: list[Any]) -> None:
    model = _model()
    names = list(model.state_dict())
    run, calls = with_compiled_blocks(torch, model)
    assert calls.of == 4
    run(torch.randn(3, 8))
    assert len(backend) == 1
    assert list(model.state_dict()) == names
    for other in (copy.deepcopy(model), torch.load(_saved(model), weights_only=False)):
        assert all("_compiled_call_impl" not in vars(block) for block in other.blocks)
        torch.testing.assert_close(other(torch.ones(2, 8)), model(torch.ones(2, 8)))


def _saved(model: nn.Module) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file


def test_what_is_validated_runs_as_the_script_wrote_it(backend: list[Any]) -> None:
    model = _model()
    run, _ = with_compiled_blocks(torch, model)
    with torch.no_grad():
        run(torch.randn(3, 8))
    assert backend == []


def test_shapes_are_told_apart_by_all_tensors_of_a_call() -> None:
    shapes = Shapes()
    for width in (3, 4):
        shapes.given(torch, (torch.ones(2, 8), None, torch.ones(width)), compiled=False)
        shapes.given(torch, (torch.ones(2, 8), "word", torch.ones(width)), compiled=False)
    assert len(shapes.seen) == 2
    assert not shapes.vary
    assert shapes.recompiled() is None
