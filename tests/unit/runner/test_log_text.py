"""What is read from a log as text."""

from __future__ import annotations

from tuner.runner.log_text import one_line


def test_a_line_for_people_has_no_colours() -> None:
    assert one_line("\x1b[31mRuntimeError\x1b[0m:\n  no \x1b[1mdata") == "RuntimeError: no data"
