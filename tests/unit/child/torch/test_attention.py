"""The kernel of attention: seen by what it leaves for the backward, chosen, set back, switched."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as imported_before

from tuner.child.torch.attention import COMPILED, NOT_CALLED, OWN_CHOICE, AttentionWatch, _ran

__all__ = ["begin"]

Begin = Callable[..., Any]


@pytest.fixture(autouse=True)
def settings_kept() -> Iterator[None]:
    cuda = torch.backends.cuda
    before = [getattr(cuda, f"{word}_sdp_enabled")() for word in ("flash", "mem_efficient", "math", "cudnn")]
    yield
    for word, may in zip(("flash", "mem_efficient", "math", "cudnn"), before, strict=True):
        getattr(cuda, f"enable_{word}_sdp")(may)


class Attending(nn.Module):  # type: ignore[misc]  # torch's own types are Any here
    """One layer; ``attend`` is how it calls the attention."""

    def __init__(self, attend: Callable[[Any], Any]) -> None:
        super().__init__()
        self.given, self.head = nn.Linear(8, 8), nn.Linear(8, 1)
        self.attend = attend

    def forward(self, x: Any) -> Any:
        shaped = self.given(x).view(4, 6, 2, 4).transpose(1, 2)
        return self.head(self.attend(shaped).transpose(1, 2).reshape(4, 6, 8))


def _plain(x: Any) -> Any:
    return nn.functional.scaled_dot_product_attention(x, x, x)


def _by_its_own_name(x: Any) -> Any:
    return imported_before(x, x, x, is_causal=True)


def _with_dropout(x: Any) -> Any:
    return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1)


def _by_choice(x: Any) -> Any:
    with sdpa_kernel(SDPBackend.MATH):
        return nn.functional.scaled_dot_product_attention(x, x, x)


def _by_hand(x: Any) -> Any:
    return torch.softmax(x @ x.transpose(-1, -2), -1) @ x


def _train(model: nn.Module, *, steps: int = 4, meanwhile: Callable[[], None] = lambda: None) -> None:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        meanwhile()
        model(torch.randn(4, 6, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("attend", "written", "choices"),
    [
        (_plain, "flash", ["flash", "math"]),
        (_by_its_own_name, "flash", ["flash", "math"]),
        (_with_dropout, "math", ["math"]),
    ],
)
def test_what_the_script_runs_is_seen_and_what_it_could_run(
    begin: Begin, attend: Callable[[Any], Any], written: str, choices: list[str]
) -> None:
    """Of this processor's two kernels the flash one knows no dropout."""
    trial = begin()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # to ask PyTorch must not make it say why it can't
        _train(Attending(attend))
    facts = trial.end()
    assert facts["as_written"]["attention"] == written
    assert facts["attention_choices"] == choices
    assert "attention" not in facts["left_out"]


@pytest.mark.parametrize(("attend", "why"), [(_by_hand, None), (_by_choice, OWN_CHOICE)])
def test_it_is_left_out_where_nothing_could_be_chosen(
    begin: Begin, attend: Callable[[Any], Any], why: str | None
) -> None:
    trial = begin()
    _train(Attending(attend))
    facts = trial.end()
    assert facts["left_out"].get("attention") == why
    assert "attention" not in facts["as_written"]


def test_a_layer_of_pytorchs_own_is_seen(begin: Begin) -> None:
    class Model(nn.Module):  # type: ignore[misc]  # torch's own types are Any here
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.layer(x)

    trial = begin()
    _train(Model())
    assert trial.end()["as_written"]["attention"] == "flash"


@pytest.mark.parametrize(
    ("asked", "attend", "evidence", "why"),
    [
        ("math", _plain, "verified", ""),
        ("flash", _plain, "verified", ""),
        ("flash", _with_dropout, "contradicted", "math ran"),
        ("efficient", _plain, "contradicted", "math ran"),
        ("flash", _by_choice, "contradicted", OWN_CHOICE),
        ("math", _by_hand, "not applicable", NOT_CALLED),
    ],
)
def test_it_is_verified_by_what_ran(
    begin: Begin, asked: str, attend: Callable[[Any], Any], evidence: str, why: str
) -> None:
    trial = begin({"attention": asked})
    _train(Attending(attend))
    trial.end()
    found, reason = trial.evidence("attention")
    assert found == evidence
    assert reason.startswith(why)


def test_a_script_that_sets_it_back_is_told(begin: Begin, capfd: pytest.CaptureFixture[str]) -> None:
    def set_back() -> None:
        torch.backends.cuda.enable_flash_sdp(True)

    trial = begin({"attention": "math"})
    _train(Attending(_plain), meanwhile=set_back)
    trial.end()
    assert trial.evidence("attention") == ("contradicted", OWN_CHOICE)
    begin({"attention": "math"}, mode="apply")
    _train(Attending(_plain), steps=24, meanwhile=set_back)
    assert f"NOT in effect: attention ({OWN_CHOICE})" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("asked", "attend", "said"),
    [
        ("math", _plain, " in effect: attention"),
        ("efficient", _plain, "NOT in effect: attention (math ran"),
        ("flash", _with_dropout, "NOT in effect: attention (math ran"),
        ("math", _by_hand, f"NOT in effect: attention ({NOT_CALLED})"),
    ],
)
def test_an_applied_run_tells_it_by_what_ran(
    begin: Begin, capfd: pytest.CaptureFixture[str], asked: str, attend: Callable[[Any], Any], said: str
) -> None:
    """A setting alone says nothing: PyTorch takes another kernel wherever the one that is set can't compute a call."""
    begin({"attention": asked}, mode="apply")
    _train(Attending(attend), steps=24)
    told = capfd.readouterr().err
    assert said in told
    assert ("NOT" in told) is ("NOT" in said)


def test_an_applied_run_says_that_it_can_not_be_told_of_a_compiled_model(
    begin: Begin, capfd: pytest.CaptureFixture[str]
) -> None:
    begin({"attention": "math"}, mode="apply")
    _train(torch.compile(Attending(_plain), backend="eager"), steps=24)
    assert f"autotune: after 20 steps can't be told: attention ({COMPILED})" in capfd.readouterr().err


def test_it_is_the_same_attention_by_either_kernel(begin: Begin) -> None:
    def trained(config: dict[str, Any]) -> list[Any]:
        begin(config)
        torch.manual_seed(0)
        model = Attending(_plain)
        _train(model, steps=10)
        return [parameter.detach().clone() for parameter in model.parameters()]

    for one, other in zip(trained({}), trained({"attention": "math"}), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_rotation_switches_it_and_puts_it_back(begin: Begin) -> None:
    trial = begin()
    model = Attending(_plain)
    _train(model)
    attention, switcher = trial.adapter.watches.modules.attention, trial.adapter.switcher()
    before = attention.settings()
    switcher.begin()
    assert switcher.refusal({"attention": "math"}) == ""
    for config, ran in (({"attention": "math"}, "math"), ({}, "flash"), ({"attention": "flash"}, "flash")):
        switcher.to(config)
        with attention.looking(compiled=False):
            model(torch.randn(4, 6, 8))
        assert attention.observed == ran
        assert switcher.doubt(config) == ""
    assert switcher.doubt({"attention": "math"}) == "flash ran as attention"
    switcher.to({})
    assert attention.settings() == before
    with attention.looking(compiled=False):
        model(torch.randn(4, 6, 8))
    attention.written(compiled=False)
    assert trial.session.facts.as_written["attention"] == "flash"


@pytest.mark.parametrize(
    ("names", "backend"),
    [
        (["ScaledDotProductEfficientAttentionBackward0"], "efficient"),
        (["SliceBackward0", "ScaledDotProductFlashAttentionBackward0"], "flash"),
        (["TransposeBackward0", "SliceBackward0", "ScaledDotProductCudnnAttentionBackward0"], "cudnn"),
        (["UnsafeViewBackward0", "BmmBackward0", "ScaledDotProductFlashAttentionBackward0"], "math"),
        ([], "math"),
    ],
)
def test_a_card_shows_its_kernels_by_their_gradients(names: list[str], backend: str) -> None:
    """As a card names them; an attention before that of plain products is another layer's."""
    node: Any = None
    for name in reversed(names):
        node = type(name, (), {"next_functions": ((node, 0),)})()
    assert _ran(node) == backend


def test_a_version_without_a_setting_goes_without_it(begin: Begin) -> None:
    trial = begin()

    class Cuda:
        def flash_sdp_enabled(self) -> bool:
            return True

        def math_sdp_enabled(self) -> bool:
            return True

    stand_in: Any = type("torch", (), {"backends": type("backends", (), {"cuda": Cuda()})})
    assert AttentionWatch(trial.session, stand_in).settings() == {"flash": True, "math": True}
