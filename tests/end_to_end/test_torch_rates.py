"""The learning rate follows a freed effective batch once, schedules included, and never fights the script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.torch_trials import begin

__all__ = ["begin"]

TRAIN = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    told = []
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}], lr=0.25)
    SCHEDULE
    data = TensorDataset(torch.randn(256, 4), torch.randn(256, 1))
    while True:
        for x, y in DataLoader(data, batch_size=8):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            EACH_STEP
            optimizer.step()
            if not told:
                told.append(print([group["lr"] for group in optimizer.param_groups], flush=True))
"""


@pytest.fixture
def trained(run_child: Callable[..., Any], write_script: Callable[..., Path]) -> Callable[..., Any]:
    """A trial, and the first rates that its optimizer stepped with."""

    def run(config: dict[str, Any], schedule: str = "", each_step: str = "") -> tuple[Any, str]:
        script = write_script(TRAIN.replace("SCHEDULE", schedule).replace("EACH_STEP", each_step or "pass"))
        ran = run_child(script, config)
        return ran, next(line for line in ran.output.splitlines() if line.startswith("["))

    return run


def test_every_group_is_scaled_once(trained: Callable[..., Any]) -> None:
    ran, first = trained({"lr_scale": 2.0})
    assert first == "[0.5, 1.0]"
    assert ran.evidence("lr_scale") == "verified"
    assert ran.facts["as_written"]["lr_scale"] == 1.0


def test_a_schedule_starts_from_the_scaled_rate(trained: Callable[..., Any]) -> None:
    ran, first = trained({"lr_scale": 2.0}, "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5)")
    assert first == "[0.25, 0.5]"
    assert ran.evidence("lr_scale") == "verified"


def test_a_script_that_sets_its_rate_is_not_fought(trained: Callable[..., Any]) -> None:
    ran, first = trained({"lr_scale": 2.0}, each_step='optimizer.param_groups[0]["lr"] = 0.125')
    assert first == "[0.125, 1.0]"
    assert ran.evidence("lr_scale") == "contradicted"
    assert ran.facts["left_out"]["lr_scale"] == "the script sets its learning rate itself"


def _stepped(*optimizers: Any) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            sum(p.sum() for p in group["params"]).backward()
        optimizer.step()


def _rates(optimizer: Any) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


@pytest.mark.parametrize("mode", ["trial", "apply"])
def test_a_rate_that_a_group_brings_in_the_middle_of_training_stays(
    begin: Callable[..., Any], capfd: pytest.CaptureFixture[str], mode: str
) -> None:
    """As when layers are unfrozen: it was computed from a scaled one, or it wasn't."""
    trial = begin({"lr_scale": 4.0}, mode=mode)
    body, head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD([head.weight], lr=0.1)
    optimizer.add_param_group({"params": [head.bias]})
    _stepped(optimizer)
    optimizer.add_param_group({"params": [body.bias]})  # the rate that it was made with, as written
    optimizer.add_param_group({"params": [body.weight], "lr": optimizer.param_groups[0]["lr"] / 10})
    assert _rates(optimizer) == pytest.approx([0.4, 0.4, 0.4, 0.04])
    if mode == "trial":
        _stepped(optimizer)
        assert "lr_scale" in trial.end()["left_out"]
        evidence, reason = trial.evidence("lr_scale")
        assert evidence == "contradicted" and "in the middle of training" in reason
    else:
        trial.session.applied.ended(0)
        assert "NOT in effect: lr_scale (a parameter group is added in the middle" in capfd.readouterr().err


def test_a_group_that_goes_from_optimizer_to_optimizer_is_scaled_once(begin: Callable[..., Any]) -> None:
    trial = begin({"lr_scale": 2.0})
    model = torch.nn.Linear(2, 1)
    groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias]}]
    outer = torch.optim.Adam([model.weight], lr=0.3)
    seen = []
    for _ in range(3):
        optimizer = torch.optim.SGD(groups, lr=0.2)
        seen.append(_rates(optimizer))
        _stepped(optimizer)
    inner = torch.optim.SGD(outer.param_groups, lr=0.3)  # as SAM's base optimizer
    assert seen == [[0.2, 0.4]] * 3
    assert _rates(inner) == [0.6]
    trial.end()
    assert trial.evidence("lr_scale")[0] == "verified"


@pytest.mark.parametrize("mode", ["trial", "apply"])
@pytest.mark.parametrize(
    ("second", "rate"), [("carried", 0.04), ("computed", 0.04), ("written", 0.4), ("seen in the baseline", 0.2)]
)
def test_an_optimizer_of_a_second_stage_is_scaled_once(
    begin: Callable[..., Any], capfd: pytest.CaptureFixture[str], mode: str, second: str, rate: float
) -> None:
    """Beyond what a trial sees: a rate that may have been computed from a scaled one stays, and it is said."""
    tells = second in ("written", "seen in the baseline")
    seen = {"rates": [[1, 0.1]], "group_rates": [[1, 1, [0.05]]]} if second == "seen in the baseline" else {}
    trial = begin({"lr_scale": 4.0}, mode=mode, **seen)
    first = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(first, 1)
    _stepped(first)
    schedule.step()
    now = first.param_groups[0]["lr"]
    rates = {"carried": now, "computed": 0.4 / 10, "written": 0.1, "seen in the baseline": 0.05}
    made = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rates[second])
    assert _rates(made) == pytest.approx([rate])
    if mode == "trial":
        _stepped(made)
        trial.end()
        evidence, reason = trial.evidence("lr_scale")
        assert (evidence == "verified") is tells and (tells or "in the middle of training" in reason)
    else:
        trial.session.applied.ended(0)
        assert ("NOT in effect: lr_scale (an optimizer is made in the middle" in capfd.readouterr().err) is not tells


def test_a_group_whose_rate_the_script_writes_anew_is_scaled_anew(begin: Callable[..., Any]) -> None:
    trial = begin({"lr_scale": 2.0})
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.1}]
    torch.optim.SGD(groups, lr=0.1)
    groups[0]["lr"] = 0.1
    assert _rates(torch.optim.SGD(groups, lr=0.1)) == [0.2]
    groups[0]["lr"] = 0.05
    last = torch.optim.SGD(groups, lr=0.1)
    assert _rates(last) == [0.05], "half of what was scaled, or a rate of the script's own"
    _stepped(last)
    trial.end()
    assert trial.evidence("lr_scale") == ("contradicted", "the script sets its learning rate itself")


@pytest.mark.parametrize(("derives", "evidence"), [(False, "verified"), (True, "contradicted")])
def test_every_group_and_optimizer_has_the_rate_of_the_baseline(
    begin: Callable[..., Any], derives: bool, evidence: str
) -> None:
    def train(both: bool, config: dict[str, Any] | None = None, **known: Any) -> Any:
        trial = begin(config, **known)
        models = [torch.nn.Linear(2, 1) for _ in range(3)]
        first = torch.optim.SGD(models[0].parameters(), lr=0.1)
        low = first.param_groups[0]["lr"] / 10 if derives else 0.01
        first.add_param_group({"params": list(models[1].parameters()), "lr": low if both else 0.01})
        second = torch.optim.SGD(models[2].parameters(), lr=low)
        _stepped(first, second)
        return trial, trial.end()

    for both in (True, False):  # a rate that only the second optimizer has is looked at, too
        _, facts = train(both)
        assert facts["group_rates"] == [[0, 1, [0.1, 0.01]], [1, 1, [0.01]]]
        known = {name: facts[name] for name in ("rates", "group_rates", "as_written")}
        trial, _ = train(both, {"lr_scale": 4.0, "batch_size": 64}, **known)
        found, reason = trial.evidence("lr_scale")
        assert found == evidence
        assert not derives or ("0.16" in reason and "as written 0.01 times 4" in reason)


@pytest.mark.parametrize("refuses", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_applied_run_scales_the_rate_with_its_batch_only(
    write_script: Callable[..., Any], run_child: Callable[..., Any], refuses: bool
) -> None:
    """A loader whose batches the script's own sampler makes keeps them, and then its rate, too."""
    script = write_script(f"""
        import torch
        from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
        data = TensorDataset(torch.ones(48, 2))
        if {refuses}:
            loader = DataLoader(data, batch_sampler=list(BatchSampler(SequentialSampler(data), 8, False)))
        else:
            loader = DataLoader(data, batch_size=8, shuffle=True)
        both = []
        for halves in (True, False):
            model = torch.nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (step // 2))
            rates = []
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).mean().backward()
                before = model.bias.detach().clone()
                optimizer.step()
                rates.append(round((before - model.bias).item(), 4))
                if halves:
                    schedule.step()
            both.append(rates)
        print("rates", both)
    """)
    knowledge = {"as_written": {"batch_size": 8}}
    ran = run_child(script, {"batch_size": 16, "lr_scale": 2.0}, mode="apply", knowledge=knowledge)
    expected = [[0.1, 0.1, 0.05, 0.05, 0.025, 0.025], [0.1] * 6] if refuses else [[0.2, 0.2, 0.1], [0.2] * 3]
    assert f"rates {expected}" in ran.output, ran.output
    assert ("NOT in effect: batch_size" in ran.output) is refuses
    assert ("lr_scale (it goes with a size of the batches that isn't in effect)" in ran.output) is refuses


PARTS = """
    import torch
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    data = torch.utils.data.TensorDataset(torch.randn(192, 4), torch.randn(192, 1))
    rates = []
    for x, y in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        rates.append((len(x), round(optimizer.param_groups[0]["lr"], 6)))
        schedule.step()
    print("rates", rates[:3])
"""


@pytest.mark.parametrize(
    "batch",
    [{"batch_size": 16, "grad_accumulation": 2}, pytest.param({"grad_accumulation": 4}, marks=pytest.mark.slow)],
)
def test_a_larger_batch_that_is_computed_in_parts_keeps_its_rate(
    batch: dict[str, Any], write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """At the first step the model is only watched yet; the batch is the config's all the same."""
    known = {"as_written": {"batch_size": 8, "grad_accumulation": 1}}
    ran = run_child(write_script(PARTS), {**batch, "lr_scale": 4.0}, mode="apply", knowledge=known)
    assert "rates [(32, 0.4), (32, 0.4), (32, 0.04)]" in ran.output, ran.output
    assert "lr_scale" in ran.output and "NOT" not in ran.output


def _rate_of(trial: Any, size: int) -> float:
    """After some steps on batches of so many samples, of a loop that gives its optimizer 0.1."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(192, 4)), size, shuffle=True):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return float(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("how", ["argument", "option", "trainer"])
def test_a_larger_batch_that_the_script_was_told_keeps_its_rate(begin: Any, how: str) -> None:
    """Tried before: with parts, or a trainer's option, the rate became the script's own, on the larger batch."""
    config = {"batch_size": 16, "lr_scale": 2.0} | ({} if how == "trainer" else {"grad_accumulation": 2})
    known: dict[str, Any] = {"as_written": {"batch_size": 8, "grad_accumulation": 1}}
    if how != "trainer":
        known |= {"placeholders": ["batch_size"]} if how == "argument" else {"options": {"batch_size": "batch_size"}}
    trial = begin(config, mode="apply", **known)
    trial.session.knobs.delegate("batch_size")  # where trainers' options, and the script's, are set
    assert _rate_of(trial, 16 if how == "trainer" else 32) == pytest.approx(0.2)
