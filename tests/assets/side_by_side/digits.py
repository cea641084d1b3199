"""What main() of studies/digits/train.py makes, as functions: the edit that a search or a finder of one's own needs."""

from typing import Any

import torch
import train

TIMED_BY = "timed_torch"
BATCH_SIZE = 64


def dataset() -> Any:
    return train.build_datasets(seed=0)[0]


def model() -> Any:
    return train.build_model()


def optimizer(parameters: Any, **implementation: bool) -> Any:
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1e-2, **implementation)
