"""Who is told to donate arrays, where no call of the training step may wait for that."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.jax_regression import LOOP, MODEL, written
from support.jax_trial import watched

AHEAD = "add = jax.jit(lambda x: (x.sum(), x * 0), donate_argnums=0)\nahead = add.lower(X[:24]).compile()\n"
BATCHES = f"{MODEL}\ndef batches(): return [(X[:24], Y[:24])] * 4\n"


@pytest.mark.parametrize("who", ["the script", "a library"])
def test_of_what_is_compiled_ahead_of_its_calls(who: str, tmp_path: Path) -> None:
    made = AHEAD if who == "the script" else f"exec(compile({AHEAD!r}, np.__file__, 'exec'))\n"
    run = written("ROWS, loss = 240, None\n" + BATCHES + made + LOOP, tmp_path)
    with watched(config={"steps_per_call": 4}, mode="apply") as trial:
        run()
        assert trial.adapter._several.why == f"{who} donates arrays to what it compiles ahead of its calls"
