"""``autotune run`` under ``Model.fit``: what took effect is told in the first steps, and ends a strict run there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.keras_trials import Trial, arrays, begin, model

from tuner.child.patches import unpatch_all

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]


@pytest.mark.slow  # 21 s beside three others
@pytest.mark.parametrize(("strict", "per_call"), [(True, 4), (False, 1), pytest.param(True, 1, marks=pytest.mark.slow)])
def test_a_strict_run_ends_within_its_first_steps(
    begin: Begin, capfd: pytest.CaptureFixture[str], strict: bool, per_call: int
) -> None:
    """The user learns of it before days of training, and not after them."""
    begin()  # puts every patch back in the end
    unpatch_all()
    Trial({"prefetch": 4, "run_eagerly": False}, {"framework": "keras"}, mode="apply", strict=strict)
    made = model(steps_per_execution=per_call)

    def endless() -> Any:
        while True:
            yield arrays(8)

    status: object = 0
    try:
        made.fit(endless(), steps_per_epoch=40, epochs=2, verbose=0)
    except SystemExit as ended:
        status = ended.code
    assert (status, int(made.optimizer.iterations.numpy())) == ((7, 20) if strict else (0, 80))
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("autotune: ")]
    assert told == [
        "autotune: after 20 steps in effect: run_eagerly;"
        " NOT in effect: prefetch (no tf.data dataset of the training was changed)"
    ]
