"""Screens of real scripts whose answer is known: pairs of real trials on the same seeds, judged as in a study."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_metrics import TRAINERS

from tuner.analysis.accuracy import AccuracyLimits, Screened, is_settled, judge
from tuner.analysis.checks import CheckKind, Pair
from tuner.analysis.first_gradient import GRADIENT
from tuner.analysis.stats import Noninferiority
from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.formatting import screened_text
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Outcome, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest, screen_window
from tuner.space.declare import Known
from tuner.space.registry import load_space
from tuner.space.resolve import resolve

QUICK = Window(warmup_steps=3, warmup_s=0.1, block_s=0.05, min_blocks=6, min_s=0.3, max_s=1.0, target_half_width=0.1)
TRAIN = """
    import random
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset
    F = nn.functional
    torch.manual_seed(0)

    class Data(Dataset):
        def __len__(self): return 2048
        def __getitem__(self, index):
            g = torch.Generator().manual_seed(index)
            ITEM
            return x, y

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            MODEL
        def forward(self, x):
            return self.layers(x)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    BEFORE
    loader = DataLoader(Data(), batch_size=32, shuffle=True)
    step = 0
    for epoch in range(1000):
        for x, y in loader:
            step += 1
            optimizer.zero_grad()
            out = model(x)
            LOSS
            STEP
"""
MLP = {
    "ITEM": "x = torch.randn(16, generator=g); y = x[:1].sin()",
    "MODEL": "self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))",
    "BEFORE": "",
    "LOSS": "loss = F.mse_loss(out, y)",
    "STEP": "loss.backward(); optimizer.step()",
}
# Between 2 and 16 of 16 tokens count; PyTorch divides by how many they are in the batch at hand.
UNEVEN = {
    "ITEM": "x = torch.randint(20, (16,), generator=g); n = int(torch.randint(2, 17, (1,), generator=g));"
    " y = x.clone(); y[n:] = -100",
    "MODEL": "self.layers = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))",
    "LOSS": "loss = F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=-100)",
}
COUNTED = {
    "LOSS": "kept = (y >= 0).flatten(); target = y.clamp(0).flatten();"
    " every = F.cross_entropy(out.flatten(0, 1), target, reduction='none'); loss = (every * kept).sum() / kept.sum()",
}
DROPOUT = {
    "MODEL": "self.layers = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, 32), nn.Dropout(0.5), nn.Linear(32, 1))"
}
FLIPPED = {"ITEM": "x = torch.randn(16, generator=g); y = x[:1].sin(); x = x.flip(0) if random.random() < 0.5 else x"}
NORMED = {"MODEL": "self.layers = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))"}
CLIPPED = {"STEP": "loss.backward(); nn.utils.clip_grad_norm_(model.parameters(), 1e-3); optimizer.step()"}
SCALER = "scaler = torch.amp.GradScaler('cpu')"
SCALED = {"BEFORE": SCALER, "STEP": "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"}
IN_CONFIG = "optimizer.param_groups[0].get('foreach')"
NAN = {"LOSS": f"loss = F.mse_loss(out, y) * (float('nan') if step > 40 and {IN_CONFIG} else 1.0)"}
# Every fifth step overflows in the config, none as written.
OVERFLOWING = {
    "BEFORE": SCALER,
    "STEP": "scaler.scale(loss).backward();"
    f" model.layers[0].weight.grad[0, 0] += float('inf') if step % 5 == 0 and {IN_CONFIG} else 0.0;"
    " scaler.step(optimizer); scaler.update()",
}
# What is to be learned is small beside the noise of the targets.
NOISY = {
    "ITEM": "x = torch.randn(16, generator=g); y = x[:1].sin() + 3 * torch.randn(1, generator=g)",
    "BEFORE": f"optimizer.param_groups[0]['lr'] = RATE if {IN_CONFIG} else OTHER",
}
# Beside the way from one begin to the next the steps are short, as where the folds of a cross-validation share a model.
BEGUN_ANEW = {"STEP": MLP["STEP"] + "; {model.apply(begin) if step == 40 else None}"}
BEGIN = "; begin = lambda module: getattr(module, 'reset_parameters', lambda: None)()"
SPLIT: Config = Config(batch_size=8, grad_accumulation=4)
LIMITS = AccuracyLimits()
SAMPLES = 32 * 80


class Screen:
    """A script, run as written and screened as a study does it."""

    def __init__(self, script: Path, folder: Path) -> None:
        self._script = Script(str(script), ())
        self._folder = folder
        self._runs = 0
        self._runner = ProcessRunner()  # its server forks the runs of a screen, as a study's does
        self.baseline = self._run(BASELINE, None, QUICK, Knowledge())
        assert self.baseline.complete, self.baseline

    def _run(self, config: Config, seed: int | None, window: Window, knowledge: Knowledge) -> Outcome:
        self._runs += 1
        folder = self._folder / str(self._runs)
        folder.mkdir(parents=True)
        request = TrialRequest(folder, self._script, cpu_device(), config, knowledge, window, seed=seed)
        return self._runner.run(request, threading.Event())

    def close(self) -> None:
        """Ends its server."""
        self._runner.close()

    def of(self, config: Config, seeds: int = 3) -> Screened:
        """The verdict on a config."""
        pairs: list[Pair] = []
        for seed in range(1, seeds + 1):
            before, after = (
                self._run(each, seed, screen_window(SAMPLES), self.baseline.knowledge) for each in (BASELINE, config)
            )
            pairs.append(Pair(seed, before, after))
            if is_settled(config, pairs):
                break
        return judge(config, pairs, LIMITS, SAMPLES)

    def left_out(self) -> dict[str, str]:
        """Knobs that the search space refuses for this script."""
        known = Known(cpu_device(), 2, knowledge=self.baseline.knowledge)
        left_out = resolve(load_space("torch"), known).left_out
        return {knob: left.reason for knob, left in left_out.items()}


@pytest.fixture
def screen(write_script: Callable[..., Path], tmp_path: Path) -> Iterator[Callable[..., Screen]]:
    """Begins a screen of the script with these parts."""
    begun: list[Screen] = []

    def begin(**parts: str) -> Screen:
        text = textwrap.dedent(TRAIN)
        for name, code in {**MLP, **parts}.items():
            text = text.replace(name, code)
        begun.append(Screen(write_script(text), tmp_path / "trials"))
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


@pytest.mark.slow  # in one process: test_torch_parts.py, unit/analysis/test_accuracy.py
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({}, id="plain"),
        pytest.param(CLIPPED, id="clipped"),
        pytest.param(SCALED, id="gradient scaler"),
    ],
)
def test_the_gradient_of_a_batch_in_parts_is_that_of_the_whole(screen: Callable[..., Screen], parts: Any) -> None:
    result = screen(**parts).of(SPLIT, seeds=1)
    gradient = result.checks[-1]
    assert gradient.name == GRADIENT and gradient.verdict is Noninferiority.PASS, result
    assert gradient.baseline > 0.01, "taken before it is clipped"
    assert gradient.worse < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_a_trainers_own_accumulation_gives_the_same_gradient_and_loss(
    write_script: Callable[..., Path], tmp_path: Path, library: str
) -> None:
    """Lightning takes its backward inside of the optimizer's step, accelerate divides the loss by 1 once more."""
    script = write_script(TRAINERS[library][0].replace("EPOCHS", "1000"))
    result = Screen(script, tmp_path / "trials").of(Config(batch_size=2, grad_accumulation=4), seeds=1)
    same = {check.kind: abs(check.candidate / check.baseline - 1) < 0.01 for check in result.checks
            if check.kind is not CheckKind.COURSE}  # fmt: skip
    assert same[CheckKind.LOSS] and same[CheckKind.GRADIENT], result
    assert result.checks[-1].verdict is Noninferiority.PASS


@pytest.mark.slow
@pytest.mark.parametrize("parts", [UNEVEN, UNEVEN | COUNTED], ids=["looks like any mean", "a sum over a count"])
def test_a_mean_over_tokens_that_count_is_taken_over_the_whole(screen: Callable[..., Screen], parts: Any) -> None:
    """A mean of the parts' means would be another loss: sequences have from 2 to 16 tokens that count."""
    begun = screen(**parts)
    assert "batch_size" not in begun.left_out()
    result = begun.of(SPLIT, seeds=1)
    gradient = result.checks[-1]
    assert gradient.name == GRADIENT and gradient.verdict is Noninferiority.PASS, result
    assert gradient.worse < 1e-5


@pytest.mark.slow  # unit/study/test_tier_3.py; what is known of it: test_torch_conditions.py
def test_batch_norm_is_refused_beforehand(screen: Callable[..., Screen]) -> None:
    assert "BatchNorm would see smaller batches" in screen(**NORMED).left_out()["batch_size"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "config", "said"),
    [(DROPOUT, SPLIT, "draws random numbers"), (FLIPPED, {**SPLIT, "num_workers": 2}, "data were not the same")],
    ids=["dropout", "augmentation in workers"],
)
def test_where_chance_moves_the_gradient_the_losses_decide(
    screen: Callable[..., Screen], parts: Any, config: Config, said: str
) -> None:
    result = screen(**parts).of(config, seeds=1)
    assert CheckKind.LOSS in {check.kind for check in result.checks} and GRADIENT not in {c.name for c in result.checks}
    assert said in result.reason


@pytest.mark.slow
def test_a_loss_that_becomes_nan_in_a_screen_fails(screen: Callable[..., Screen]) -> None:
    result = screen(**NAN).of(Config(optimizer="foreach"))
    assert result.verdict is Noninferiority.FAIL
    assert "the training loss became nan" in screened_text(result)
    assert result.seeds == 1, "no further seed is tried"


@pytest.mark.slow
def test_steps_that_overflow_again_and_again_fail(screen: Callable[..., Screen]) -> None:
    result = screen(**OVERFLOWING).of(Config(optimizer="foreach"), seeds=1)
    assert result.verdict is Noninferiority.FAIL
    assert "(20%" in result.reason and "gradients overflow" in screened_text(result)


@pytest.mark.slow  # unit/study/test_course_screens.py
def test_where_the_loss_tells_nothing_only_the_same_course_passes(screen: Callable[..., Screen]) -> None:
    """One config learns as the script does as written, the other one half as fast."""
    slower = "0.0005 if optimizer.param_groups[0].get('fused') else 0.001"
    before = NOISY["BEFORE"].replace("RATE", "0.001").replace("OTHER", slower)
    begun = screen(**{**NOISY, "BEFORE": before})
    for config, verdict in (
        (Config(optimizer="foreach"), Noninferiority.PASS), (Config(optimizer="fused"), Noninferiority.INCONCLUSIVE)
    ):  # fmt: skip
        result = begun.of(config, seeds=1)
        assert result.verdict is verdict, screened_text(result)
        course = [check for check in result.checks if check.kind is CheckKind.COURSE]
        assert len(course) == 2 and all(check.worse < 1e-4 for check in course) is (verdict is Noninferiority.PASS)


@pytest.mark.slow
def test_weights_that_are_set_anew_say_nothing_of_a_course(screen: Callable[..., Screen]) -> None:
    """With nine tenths of the learning rate they seemed to go the same way, since the new begin is the same."""
    before = NOISY["BEFORE"].replace("RATE", "0.0009").replace("OTHER", "0.001") + BEGIN
    parts = {**NOISY, **BEGUN_ANEW, "BEFORE": before}
    result = screen(**parts).of(Config(optimizer="foreach"), seeds=1)
    assert result.verdict is Noninferiority.INCONCLUSIVE, screened_text(result)
