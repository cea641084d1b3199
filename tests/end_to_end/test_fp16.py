"""fp16 where the script has no loss scaling of its own: the numbers that it has by hand, and none that is scaled."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin, seeded_model
from torch.nn.utils import clip_grad

__all__ = ["begin"]


Begin = Callable[..., Any]


def _scaled_by_hand(device: str, batches: list[tuple[Any, Any]]) -> tuple[Any, int]:
    skipped = 0
    model, optimizer = seeded_model()
    model.to(device)
    scaler = torch.amp.GradScaler(device)
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        scaler.scale(torch.nn.functional.mse_loss(out.float(), y)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.4)
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        skipped += scaler.get_scale() < before
    return model.weight, skipped


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.mark.parametrize("device", DEVICES)
def test_fp16_scales_clips_and_skips_as_by_hand(begin: Begin, device: str) -> None:
    torch.manual_seed(1)
    batches = [(torch.randn(8, 5, device=device), torch.randn(8, 1, device=device)) for _ in range(6)]
    batches[2][1][0] = 1e6  # its gradient overflows: the step must be skipped
    by_hand, skipped = _scaled_by_hand(device, batches)
    trial = begin({"precision": "fp16"}, device=device)
    model, optimizer = seeded_model()
    model.to(device)
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.4)  # a second one must not unscale again
        optimizer.step()
    assert torch.equal(model.weight, by_hand)
    trial.adapter.watches.steps.scalers.settle()
    assert trial.adapter.watches.steps.scalers.skipped == skipped >= 1


def test_two_optimizers_of_one_step_share_the_scale(begin: Begin) -> None:
    begin({"precision": "fp16"})
    (one, first), (two, second) = seeded_model(), seeded_model()
    x, y = torch.randn(8, 5), torch.randn(8, 1)
    y[0] = 1e6  # the scale is halved after this step, not between its two updates
    for target in (y, torch.zeros(8, 1)):
        for model in (one, two):
            torch.nn.functional.mse_loss(model(x), target).backward()
        first.step()
        second.step()
        first.zero_grad()
        second.zero_grad()
    assert torch.equal(one.weight, two.weight)


def _begin(begin: Begin) -> Any:
    """An applied run whose scale is found already: nothing overflows."""
    trial = begin({"precision": "fp16"}, mode="apply")
    trial.adapter.watches.steps.scaling.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    return trial


def _sign(model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = parameter.grad.sign()


RULES: dict[str, Callable[[Any], object]] = {
    "nothing": lambda model: None,
    "clips by the submodule's name": lambda model: clip_grad.clip_grad_norm_(model.parameters(), 0.5),
    "clips values": lambda model: clip_grad.clip_grad_value_(list(model.parameters()), 0.1),
    "clamps by hand": lambda model: [p.grad.clamp_(-0.1, 0.1) for p in model.parameters()],
    "decays by hand": lambda model: [p.grad.add_(0.5 * p.detach()) for p in model.parameters()],
    "divides": lambda model: [p.grad.div_(4) for p in model.parameters()],
    "takes others": _sign,
}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "fused Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.05, fused=True),
    "SAM": lambda parameters: Sam(parameters, torch.optim.SGD, lr=0.05),
}


class Sam(torch.optim.Optimizer):  # type: ignore[misc]  # PyTorch's classes aren't typed here
    """As its authors wrote it, but for its first step: two optimizers share their groups."""

    def __init__(self, parameters: Any, base: Any, **given: Any) -> None:
        super().__init__(parameters, given)
        self.base_optimizer = base(self.param_groups, **given)
        self.param_groups: Any = self.base_optimizer.param_groups

    def step(self, closure: Any = None) -> None:
        self.base_optimizer.step()


def _moved(optimizer_of: Callable[[Any], Any], rule: Callable[[Any], object], *, parts: int = 1) -> tuple[Any, Any]:
    """The weights after a few steps, and the gradients that the script saw."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
    optimizer = optimizer_of(model.parameters())
    seen = []
    for _ in range(12):
        optimizer.zero_grad(set_to_none=parts == 1)
        for _ in range(parts):
            x = torch.randn(16, 8)
            torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            seen.append(model[0].weight.grad.clone())
        rule(model)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), torch.stack(seen)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("rule", RULES)
def test_a_script_changes_its_gradients_as_it_wrote_it(begin: Begin, rule: str, optimizer: str) -> None:
    plain, gradients = _moved(OPTIMIZERS[optimizer], RULES[rule], parts=2)
    _begin(begin)
    scaled, seen = _moved(OPTIMIZERS[optimizer], RULES[rule], parts=2)
    torch.testing.assert_close(seen[:2], gradients[:2], rtol=0.01, atol=0.01)
    # A sign may turn where a gradient is about zero.
    torch.testing.assert_close(scaled, plain, rtol=0.02, atol=0.11 if "others" in rule or "Adam" in optimizer else 0.02)


def test_an_overflow_that_is_clamped_by_hand_is_left_out_all_the_same(begin: Begin) -> None:
    begin({"precision": "fp16"}, mode="apply")
    model, optimizer = seeded_model()
    before = model.weight.detach().clone()
    (model(torch.randn(8, 5)) * 1e6).sum().backward()
    assert not model.weight.grad.isfinite().all()
    for parameter in model.parameters():
        parameter.grad.nan_to_num_().clamp_(-1, 1)
    optimizer.step()
    assert torch.equal(model.weight, before)


def test_a_scale_falls_where_the_script_drops_overflows_itself(begin: Begin) -> None:
    begin({"precision": "fp16"}, mode="apply")
    model, optimizer = seeded_model()
    finite = []
    for _ in range(12):
        optimizer.zero_grad()
        (model(torch.randn(8, 5)) * 1e2).sum().backward()
        finite.append(bool(model.weight.grad.isfinite().all()))
    assert finite[-1] and not finite[0]


def test_two_optimizers_clip_and_step_in_turn(begin: Begin) -> None:
    def train() -> list[Any]:
        (one, first), (two, second) = seeded_model(), seeded_model()
        for _ in range(6):
            x = torch.randn(8, 5)
            for model, optimizer in ((one, first), (two, second)):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            first.step()
            second.step()
        return [one.weight.detach(), two.weight.detach()]

    torch.manual_seed(3)
    plain = train()
    _begin(begin)
    torch.manual_seed(3)
    for scaled, as_written in zip(train(), plain, strict=True):
        torch.testing.assert_close(scaled, as_written, rtol=0.01, atol=0.001)


def test_gradients_that_no_optimizer_holds_are_as_written(begin: Begin) -> None:
    """Of a batch, as attacks take them, and of weights that are clipped along with the trained ones."""
    _begin(begin)
    body, head = torch.nn.Linear(5, 5), torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        body.zero_grad()
        x = torch.randn(8, 5, requires_grad=True)
        head(body(x)).mean().backward()
        by_hand = (head.weight @ body.weight / 8).detach().expand(8, 5)
        torch.testing.assert_close(x.grad, by_hand, rtol=0.02, atol=0.001)
        norm = torch.nn.utils.clip_grad_norm_([*body.parameters(), *head.parameters()], 100.0)
        assert float(norm) < 100
        optimizer.step()


def _hooked(model: Any, given: list[Any]) -> None:
    """Clamps on the way, in place and by what it gives; notes what it was given."""
    model[0].weight.register_hook(lambda gradient: given.append(gradient.clone()))
    model[1].weight.register_hook(lambda gradient: gradient.clamp(-0.05, 0.05))
    model[1].bias.register_post_accumulate_grad_hook(lambda parameter: _clamp(parameter.grad))
    model[0].register_forward_hook(lambda layer, args, out: (out.register_hook(_clamp), None)[1])


def _clamp(gradient: Any) -> None:
    gradient.clamp_(-0.01, 0.01)


def test_hooks_are_given_the_gradients_of_the_script(begin: Begin) -> None:
    def train() -> tuple[Any, list[Any]]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
        given: list[Any] = []
        _hooked(model, given)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(6):
            optimizer.zero_grad()
            x = torch.randn(16, 8)
            torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()], given

    plain, as_written = train()
    _begin(begin)
    weights, given = train()
    torch.testing.assert_close(given, as_written, rtol=0.02, atol=0.002)
    torch.testing.assert_close(weights, plain, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("late", [False, True])
def test_gradients_of_tensors_that_come_late_are_as_written(begin: Begin, late: bool) -> None:
    """Of a copy of the model for each task, as a meta-learner makes it, and of a batch that is attacked in the end."""
    _begin(begin)
    model, optimizer = seeded_model()
    for number in range(20):
        one = copy.deepcopy(model)
        optimizer.zero_grad()
        x = torch.randn(8, 5, requires_grad=late and number >= 17)
        one(x).mean().backward()
        torch.testing.assert_close(one.weight.grad, x.detach().mean(0, keepdim=True), rtol=0.02, atol=0.002)
        if x.requires_grad:
            by_hand = (model.weight / 8).detach().expand(8, 5)
            torch.testing.assert_close(x.grad, by_hand, rtol=0.02, atol=0.001)


def test_a_step_within_a_backward_and_one_with_a_closure_are_scaled_once(begin: Begin) -> None:
    def train(how: str) -> Any:
        torch.manual_seed(4)
        model, _ = seeded_model()
        optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}
        if how == "within":
            for p in model.parameters():
                p.register_post_accumulate_grad_hook(lambda p: (optimizers[p].step(), optimizers[p].zero_grad())[-1])
        both = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            x = torch.randn(8, 5)

            def closure(x: Any = x) -> Any:
                both.zero_grad()
                loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
                loss.backward()
                return loss

            closure() if how == "within" else both.step(closure)
        return model.weight.detach()

    plain = train("closure")
    for how in ("within", "closure"):
        _begin(begin)
        torch.testing.assert_close(train(how), plain, rtol=0.02, atol=0.002)


def test_an_overflow_in_a_closure_updates_by_zeros(begin: Begin) -> None:
    begin({"precision": "fp16"}, mode="apply")
    model, optimizer = seeded_model()

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (model(torch.ones(8, 5)) * 1e6).sum()
        loss.backward()
        return loss

    before = model.weight.detach().clone()
    optimizer.step(closure)
    assert torch.equal(model.weight, before)


def test_a_second_thread_beside_the_first_has_fp16_refused(begin: Begin, capfd: pytest.CaptureFixture[str]) -> None:
    trial = begin({"precision": "fp16"}, mode="apply")
    (one, first), (two, second) = seeded_model(), seeded_model()
    x, y = torch.randn(8, 5), torch.zeros(8, 1)

    def other() -> None:
        torch.nn.functional.mse_loss(two(x), y).backward()
        second.step()

    def one_after_the_other() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    for _ in range(2):
        torch.nn.functional.mse_loss(one(x), y).backward()
        first.step()
        one_after_the_other()
    assert trial.session.knobs.wants("precision")
    torch.nn.functional.mse_loss(one(x), y).backward()
    one_after_the_other()
    first.step()
    assert not trial.session.knobs.wants("precision")
    assert one.weight.isfinite().all() and two.weight.isfinite().all()
    trial.session.applied.ended(0)
    assert "NOT in effect: precision (several threads train at once" in capfd.readouterr().err
