"""An error of the script's own generator: TensorFlow raises it again, with a traceback in a text that a record cuts."""

from __future__ import annotations

from tuner.child.records import Hello, Record, ScriptException
from tuner.runner.classify import Traces, classify

TEXT = """Graph execution error:

Detected at node PyFunc defined at (most recent call last):
<stack traces unavailable>
TypeError: an element of shape (1, 10, 1) where (None, 2, 1) was expected
Traceback (most recent call last):

  File "script_ops.py", line 269, in __call__
    ret = func(*args)
          ^^^^^^^^^^^"""


def test_what_the_generator_raised_is_told() -> None:
    """It read "InvalidArgumentError: ^^^^^^^^^^^"."""
    records: list[Record] = [Hello(1, "3.11.0", "python"), ScriptException("InvalidArgumentError", TEXT, "", "script")]
    detail = classify(Traces(records, True, status=1 << 8))[2]
    assert detail == "InvalidArgumentError: TypeError: an element of shape (1, 10, 1) where (None, 2, 1) was expected"
