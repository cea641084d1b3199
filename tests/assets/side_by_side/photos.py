"""What main() of studies/photos/train.py makes, as functions: the edit that a search or a finder of one's own needs."""

from typing import Any

import torch
import train

TIMED_BY = "timed_torch"
BATCH_SIZE = 32


def dataset() -> Any:
    return train.Crops(2000, seed=0, augment=True)


def model() -> Any:
    return train.build_model()


def optimizer(parameters: Any, **implementation: bool) -> Any:
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9, weight_decay=5e-4, **implementation)
