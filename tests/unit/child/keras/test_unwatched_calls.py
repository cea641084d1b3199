"""Calls of ``Model.fit`` that go without autotune's instruments."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.keras_trials import Trial, arrays, begin, model

from tuner.child.instruments import LEAST_STEPS, SHORT_STEP_S

__all__ = ["begin"]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_updates_of_a_fit_that_begins_without_them_are_known_all_the_same(begin: Callable[..., Trial]) -> None:
    """As where a script calls it once an epoch: several steps in a call may take more of them than an epoch has."""
    trial, net, (x, y) = begin(), model(), arrays(10 * (LEAST_STEPS + 1))
    net.fit(x, y, batch_size=10, epochs=1, verbose=0)
    instruments = trial.session.clock.instruments
    instruments.is_wanted = instruments.may_go_off = lambda: True
    assert instruments.begin(SHORT_STEP_S, lambda: None)
    net.fit(x, y, batch_size=10, epochs=1, verbose=0)
    assert instruments.off
    for _ in range(4):
        net.fit(x, y, batch_size=10, epochs=1, verbose=0)
    fits = trial.adapter.watches.fits
    assert fits is not None
    assert fits.steps.updates.counted == fits.steps.batches_trained == 6 * (LEAST_STEPS + 1)
