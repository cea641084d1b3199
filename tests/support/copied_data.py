"""Trains on data in this process, and tells what is left out since workers would copy them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Begin = Callable[..., Any]


class Rows(torch.utils.data.Dataset[Any]):  # type: ignore[misc]  # PyTorch may lack types where this is checked
    """A plain table, which each worker may copy; whose subclasses aren't."""

    def __init__(self, transform: Any = None) -> None:
        self.x, self.y = torch.randn(96, 5), torch.randn(96, 1)
        self.transform = transform

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Any:
        x = self.x[index]
        return (x if self.transform is None else self.transform(x)), self.y[index]


def left_out(
    begin: Begin, dataset: Any, each: Callable[[], None] = lambda: None,
    *, before: Callable[[], None] = lambda: None, **options: Any,
) -> dict[str, str]:  # fmt: skip
    """Knob → why it is left out, of a script that trains on the dataset for two epochs; and what is remarked.

    ``each`` is called after each step, ``before`` ahead of the first epoch.
    """
    trial = begin()
    before()
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, **options)
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            each()
    facts = trial.end()
    found: dict[str, str] = {**facts["left_out"], "remarks": " ".join(facts["remarks"])}
    of_workers = ("num_workers", "prefetch_factor", "persistent_workers", "remarks")
    return {knob: found[knob] for knob in of_workers if found.get(knob)}
