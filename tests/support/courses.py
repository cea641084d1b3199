"""A script that trains in many ways and prints the course of each: plainly and under autotune it has to say the same.

Each training prints one JSON line: the learning rate of every step, how many there were, updates of an average, the
samples in their order with their labels, and the weights at the end; and the sizes that the model's forward was given.
"""

from __future__ import annotations

import json
import math
from typing import Any

BATCH = 16
SCRIPT = """
    import copy, json, math, sys
    import torch
    from torch import nn
    from torch.optim import lr_scheduler as schedules
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
    from torch.utils.data import DataLoader, Dataset

    SAMPLES, BATCH, EPOCHS = 92, 16, 3
    given, linear = [], nn.functional.linear

    def noted(x, *args):
        if torch.is_grad_enabled() and x.shape[1] == 6:
            given.append(len(x))
        return linear(x, *args)

    nn.functional.linear = noted  # a model that notes it by itself keeps something

    class Data(Dataset):
        def __len__(self):
            return SAMPLES
        def __getitem__(self, index):
            x = torch.randn(6, generator=torch.Generator().manual_seed(index))
            x[0] = index
            return x, torch.tensor([float(index)])

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        def forward(self, x):
            return self.layers(torch.cat([x[:, :1] / 100, x[:, 1:]], dim=1))

    class Course:
        def __init__(self, drop_last=False, optimizer=torch.optim.SGD):
            torch.manual_seed(1)
            self.loader = DataLoader(
                Data(), batch_size=BATCH, shuffle=True, drop_last=drop_last, generator=torch.Generator().manual_seed(2)
            )
            self.model = Model()
            self.optimizer = optimizer(self.model.parameters(), lr=0.01)
            self.rates, self.pairs, self.averages = [], [], 0
        def loss(self, x, y):
            self.pairs += [[int(a), int(b)] for a, b in zip(x[:, 0], y[:, 0])]
            return nn.functional.mse_loss(self.model(x), y / 100)
        def step(self):
            self.rates.append(self.optimizer.param_groups[0]["lr"])
            self.optimizer.step()
        def tell(self, name):
            weights = torch.cat([p.detach().flatten() for p in self.model.parameters()]).tolist()
            print(json.dumps({
                "name": name, "rates": self.rates, "steps": len(self.rates), "pairs": self.pairs, "weights": weights,
                "averages": self.averages, "rate": self.optimizer.param_groups[0]["lr"], "batches": len(self.loader),
                "given": sorted(set(given)),
            }), flush=True)
            given.clear()

    def train(name, make=None, per_batch=False, stop_at=None, each=None, **more):
        course = Course(**more)
        schedule = make(course) if make else None
        seen = 0
        for epoch in range(EPOCHS):
            total = 0.0
            for x, y in course.loader:
                course.optimizer.zero_grad()
                loss = course.loss(x, y)
                loss.backward()
                total += float(loss)
                course.step()
                if each:
                    each(course)
                if schedule is not None and per_batch:
                    schedule.step()
                seen += 1
                if seen == stop_at:
                    break
            if schedule is not None and not per_batch:
                schedule.step(*([total] if isinstance(schedule, schedules.ReduceLROnPlateau) else []))
            if seen == stop_at:
                break
        course.tell(name)

    length = lambda c: len(c.loader) * EPOCHS
    cosine = lambda c: schedules.CosineAnnealingLR(c.optimizer, length(c))
    train("step per epoch", lambda c: schedules.StepLR(c.optimizer, 1, 0.7))
    train("cosine per batch", cosine, per_batch=True)
    train("one cycle per batch", lambda c: schedules.OneCycleLR(c.optimizer, 0.1, length(c)), per_batch=True)
    train("warm-up per batch", lambda c: schedules.LambdaLR(c.optimizer, lambda n: min(1, n / 10)), per_batch=True)
    train("plateau", lambda c: schedules.ReduceLROnPlateau(c.optimizer, patience=0, threshold=0.9))
    train("stops by a count", stop_at=11)
    train("drops the last", cosine, per_batch=True, drop_last=True)

    def average(course):
        if not course.averages:
            course.average = AveragedModel(course.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        course.average.update_parameters(course.model)
        course.averages += 1
    train("averaged model", each=average)

    def average_by_hand(course):
        if not course.averages:
            course.average = copy.deepcopy(course.model)
        with torch.no_grad():
            for a, p in zip(course.average.parameters(), course.model.parameters()):
                a.mul_(0.9).add_(p, alpha=0.1)
        course.averages += 1
    train("average by hand", each=average_by_hand)
    train("AdamW", optimizer=torch.optim.AdamW)

    course = Course()
    for epoch in range(EPOCHS):
        for x, y in course.loader:
            for p in course.model.parameters():
                p.grad = None
            every = (course.model(x) - y / 100).square()
            kept = (y % 3 > 0).float()
            ((every * kept).sum() / kept.sum()).backward()
            nn.utils.clip_grad_norm_(course.model.parameters(), 0.01)
            course.step()
    course.tell("a mean over what counts, clipped, cleared by hand")

    course, scaler = Course(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for epoch in range(EPOCHS):
        for x, y in course.loader:
            course.optimizer.zero_grad()
            scaler.scale(course.loss(x, y)).backward()
            scaler.unscale_(course.optimizer)
            nn.utils.clip_grad_norm_(course.model.parameters(), 0.5)
            course.rates.append(course.optimizer.param_groups[0]["lr"])
            scaler.step(course.optimizer)
            scaler.update()
    course.tell("gradient scaler")

    course = Course(optimizer=lambda parameters, lr: torch.optim.LBFGS(parameters, lr=lr, max_iter=3))
    for epoch in range(EPOCHS):
        for x, y in course.loader:
            def closure():
                course.optimizer.zero_grad()
                loss = course.loss(x, y)
                loss.backward()
                return loss
            course.rates.append(course.optimizer.param_groups[0]["lr"])
            course.optimizer.step(closure)
    course.tell("closure")

    course = Course()
    judge = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
    second = torch.optim.Adam(judge.parameters(), lr=0.01)
    for epoch in range(EPOCHS):
        for x, y in course.loader:
            second.zero_grad()
            (judge(y / 100).mean() - judge(course.model(x).detach()).mean()).backward()
            second.step()
            course.optimizer.zero_grad()
            (judge(course.model(x)).mean() + 0.1 * course.loss(x, y)).backward()
            course.step()
    course.tell("two optimizers")
"""

FEW = SCRIPT[: SCRIPT.index('    train("warm-up per batch"')] + '    train("stops by a count", stop_at=11)\n'
"""The same, with four of them."""


def told(output: str) -> dict[str, dict[str, Any]]:
    """Name of each training → what it printed of its course."""
    lines = (json.loads(line) for line in output.splitlines() if line.startswith('{"name"'))
    return {line["name"]: line for line in lines}


def differences(plain: dict[str, Any], other: dict[str, Any], *, weights: float = 1e-4) -> list[str]:
    """What isn't the same in two courses, by name; weights may lie apart by a share of their norm."""
    found = [name for name in plain if name not in ("weights", "given") and plain[name] != other[name]]
    norm = math.hypot(*plain["weights"])
    apart = math.dist(plain["weights"], other["weights"])
    return found if apart <= weights * norm else [*found, f"weights ({apart / norm:.2g})"]
