"""An error of the script's own generator: TensorFlow raises it again, with a traceback in a text that a record cuts."""

from __future__ import annotations

import pytest

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


DETECTED = "Detected at node PyFunc defined at (most recent call last):\n<stack traces unavailable>\n"
IN_A_GRAPH = f"Graph execution error:\n\n{DETECTED}"
EAGER = "{{function_node __wrapped__IteratorGetNext_output_types_2_device_/job:localhost/device:CPU:0}} "
TRACEBACK = '\nTraceback (most recent call last):\n\n  File "script_ops.py", line 269, in __call__\n    ret = func()\n'


@pytest.mark.parametrize("before", [IN_A_GRAPH, EAGER], ids=["in a graph", "eager"])
@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("OutOfBudget: ", "OutOfBudget"), ("OutOfBudget: spent it: all", "OutOfBudget: spent it: all"),
        ("KeyboardInterrupt: ", "KeyboardInterrupt"), ("SystemExit: no data", "SystemExit: no data"),
        ("ValueError: two\nlines: here", "ValueError: two lines: here"),
    ],
)  # fmt: skip
def test_whatever_it_raised_is_told(before: str, raised: str, told: str) -> None:
    """An exception that isn't called ...Error or ...Exception was told as a line of TensorFlow's own code."""
    records: list[Record] = [
        Hello(1, "3.11.0", "python"), ScriptException("UnknownError", before + raised + TRACEBACK, "", "script"),
    ]  # fmt: skip
    assert classify(Traces(records, True, status=1 << 8))[2] == f"UnknownError: {told}"
