"""Whether an error goes on behind a ``with`` around a training step: then what it donated could be read."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from support.rebound import seen

from tuner.child.jax.rebinding import CAUGHT

HEAD = """
import threading, time, warnings
from contextlib import contextmanager

class Timer:
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.took = time.time()
        if error[0] is None:
            return
        return False

class Stops(Timer):
    def __exit__(self, *error):
        return error[0] is not None

class Lazy(contextlib.suppress):
    pass

class Plot:
    @contextmanager
    def drawing(self):
        try:
            yield self
        finally:
            print('drawn')

    @contextmanager
    def trying(self):
        try:
            yield self
        except ValueError:
            print('not drawn')

@contextmanager
def timed():
    began = time.time()
    yield
    print(time.time() - began)

@contextmanager
def told():
    with timed(), threading.Lock():
        try:
            yield
        except ValueError:
            raise RuntimeError('a step failed')

@contextmanager
def stopped():
    with contextlib.suppress(ValueError):
        yield

@contextmanager
def endless():
    with endless():
        yield

def made():
    return Timer()

timer, stops, plot, lock = Timer(), Stops(), Plot(), threading.Lock()
held = stopped()
"""
PASS = (
    "open('/dev/null')", "Timer()", "timer", "lock", "threading.RLock()", "warnings.catch_warnings()", "timed()",
    "told()", "plot.drawing()", "contextlib.nullcontext()", "contextlib.redirect_stdout(None)",
)  # fmt: skip
STOP = (
    "contextlib.suppress(ValueError)", "contextlib.ExitStack()", "Stops()", "stops", "Lazy()", "stopped()", "endless()",
    "made()", "plot.trying()", "held", "Timer() if x else stops", "timed(), Stops()", "[timer][0]",
)  # fmt: skip


@pytest.mark.parametrize("what", PASS)
def test_what_lets_errors_pass_ends_the_script(what: str, tmp_path: Path) -> None:
    """As it is, and where a function has made it."""
    assert seen(f"{HEAD}\nwith {what}:\n    a, b = step(a, x)", tmp_path).numbers == {0}
    in_function = f"def main(a):\n    own = {what}\n    with own:\n        a, b = step(a, x)\nmain(a)"
    assert bool(seen(f"{HEAD}\n{in_function}", tmp_path).numbers) == what.endswith(")")


@pytest.mark.parametrize("what", STOP)
def test_what_may_stop_them_leaves_the_step_as_written(what: str, tmp_path: Path) -> None:
    with contextlib.suppress(RecursionError):  # what "endless" comes to
        assert seen(f"{HEAD}\nwith {what}:\n    a, b = step(a, x)", tmp_path).why == CAUGHT


@pytest.mark.parametrize(
    "text",
    [
        "def main(a, own):\n    with own:\n        a, b = step(a, x)\nmain(a, timer)",
        "def main(a):\n    own = Timer()\n    own = stops\n    with own:\n        a, b = step(a, x)\nmain(a)",
        "def main(a):\n    for own in (timer, stops):\n        with own:\n            a, b = step(a, x)\nmain(a)",
    ],
)
def test_a_variable_that_may_be_another_one_may_stop_them(text: str, tmp_path: Path) -> None:
    assert seen(f"{HEAD}\n{text}", tmp_path).why == CAUGHT
