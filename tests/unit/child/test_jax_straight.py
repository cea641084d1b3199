"""Which iterations give their batches to compiled functions, and to nothing else: told by the script's source."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jax_here import jax
from support.jax_trial import watched

from tuner.child.jax.rebinding import UNREADABLE
from tuner.child.jax.straight import CHANGES, DONATED, ELSEWHERE, OTHER_CALL, OTHER_LOOP, Straight


class Data:
    """Notes of each iteration where its batches go."""

    def __init__(self) -> None:
        self.straight = Straight()
        self.found: list[str] = []

    def __iter__(self) -> Iterator[Any]:
        self.found.append(self.straight.why_not(sys._getframe(1)))
        return iter(())


class Holder:
    """Has compiled functions as attributes."""

    step: Any = None
    donating: Any = None


def add(first: Any, *others: Any, **named: Any) -> Any:
    return first


def found(text: str, folder: Path) -> str:
    """What is found of the one iteration of ``data`` in a script of this text."""
    file, data, holder = folder / "script.py", Data(), Holder()
    file.write_text(text)
    with watched():
        step = holder.step = jax.jit(add)
        holder.donating = jax.jit(add, donate_argnums=2)  # the batch, where it is called as a method
        names = {"step": step, "other": jax.jit(lambda *a: a), "plain": add, "data": data, "holder": holder}
        names |= {"donating": jax.jit(add, donate_argnums=1), "state": 0, "jax": jax, "__name__": "__main__"}
        exec(compile(text, str(file), "exec", dont_inherit=True), names)
    [why] = data.found
    return why


@pytest.mark.parametrize(
    "text",
    [
        "for batch in data:\n    state = step(state, batch)",
        "for batch in data:\n    state = step(state, batch['x'], y=batch['y'])\n    len(batch), batch['x'].shape[0]",
        "for x, (y, z) in data:\n    state, loss = step(state, (x, {'y': y}), *z), other(x)",
        "for number, batch in enumerate(data):\n    state = step(state, batch)\n    print(number)",
        "for st, batch in enumerate(data):\n    state = step(state, batch)",
        "for number, batch in zip(range(2), data):\n    state = step(state, batch), number",
        "for batch in data:\n    state = holder.step(state, batch)",
        "for batch in data:\n    donating(batch, 1)",
        "def main(state):\n    for batch in data:\n        state = step(state, batch)\nmain(1)",
        "def loss_of(batch):\n    return batch * 2\nfor batch in data:\n    state = step(state, batch)",
        "rows = iter(data)\nfor _ in range(0):\n    batch = next(rows)\n    step(state, batch)",
        "def main(state):\n    rows = iter(data)\n    while False:\n        state = step(state, next(rows))\nmain(1)",
    ],
)
def test_batches_that_go_into_compiled_functions_alone(text: str, tmp_path: Path) -> None:
    assert found(text, tmp_path) == ""


ELSE = ELSEWHERE.format("batch")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("for batch in data:\n    batch['x'] += 1\n    step(state, batch)", ELSE),
        ("for batch in data:\n    batch['x'] = 1\n    step(state, batch)", ELSE),
        ("for batch in data:\n    batch += 1\n    step(state, batch)", ELSE),
        ("for batch in data:\n    batch = batch / 255\n    step(state, batch)", ELSE),
        ("for batch in data:\n    step(state, batch.mean())", ELSE),
        ("kept = []\nfor batch in data:\n    kept.append(batch)", OTHER_CALL.format("batch", "kept.append")),
        ("for batch in data:\n    plain(state, batch)", OTHER_CALL.format("batch", "plain")),
        ("for batch in data:\n    step(state, batch)\n    step = plain", CHANGES.format("batch", "step")),
        ("for batch in data:\n    donating(state, batch)", DONATED.format("batch", "donating")),
        ("for batch in data:\n    holder.donating(state, batch)", DONATED.format("batch", "holder.donating")),
        ("for batch in data:\n    donating(*[state], batch)", DONATED.format("batch", "donating")),
        ("batch = 1\nfor batch in data:\n    step(state, batch)\nprint(f'{batch}')", ELSE),
        ("def show():\n    print(batch)\nfor batch in data:\n    step(state, batch)", ELSE),
        ("for batch in data:\n    step(state, [batch for _ in 'a'])", ELSE),
        ("for batch in data:\n    step(state, lambda: batch)", ELSE),
        ("for batch in data:\n    step(state, batch)\n    print(locals())", OTHER_LOOP),
        ("for holder.batch in data:\n    step(state, holder.batch)", OTHER_LOOP),
        ("for batch in list(data):\n    step(state, batch)", OTHER_LOOP),
        ("kept = [batch for batch in data]", OTHER_LOOP),
        ("for batch, again in zip(data, state or ()):\n    step(batch)", OTHER_LOOP),
        ("rows = iter(data)\nkept = rows\nfor _ in 'a':\n    pass", OTHER_LOOP),
        ("rows = iter(data)\nfor batch in rows:\n    step(batch)", OTHER_LOOP),
        ("rows = iter(data)\nrows = rows or 1", OTHER_LOOP),
        ("def see():\n    return next(rows)\nrows = iter(data)\nfor _ in '':\n    step(state, next(rows))", OTHER_LOOP),
        ("class Trainer:\n    for batch in data:\n        step(batch)", OTHER_LOOP),
    ],
)
def test_batches_that_may_go_elsewhere(text: str, why: str, tmp_path: Path) -> None:
    assert found(text, tmp_path) == why


def test_code_without_a_file_says_nothing() -> None:
    data = Data()
    exec("for batch in data:\n    print(batch)", {"data": data})
    assert data.found == [UNREADABLE]
