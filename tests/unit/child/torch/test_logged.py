"""What a script gives to a logger, read without a word of PyTorch's."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from support.in_process import Log, session_of


def test_a_loss_that_wants_a_gradient_is_read_in_silence() -> None:
    """A script may make warnings errors: one of ours would end its training, in `writer.add_scalar`."""
    log = Log()
    session = session_of({}, log)
    loss = torch.ones(1, requires_grad=True).sum() * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.metrics.log("loss", loss)
        session.metrics.log("accuracy", np.array([0.5]))
    assert [record["value"] for record in log.of("metric")] == [3.0, 0.5]
