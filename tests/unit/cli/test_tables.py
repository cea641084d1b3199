"""Tables of what is in folders of anybody's."""

from __future__ import annotations

import pytest

from tuner.cli.tables import show
from tuner.report.table import Table


def test_a_cell_does_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A study's folder may come from somebody else, with a script's name that would clear the screen."""
    show(Table(("folder", "script"), [("a\nb", "\x1b[2Jtrain.py\x07"), ("[bold]", "träin.py")]))
    said = capsys.readouterr().out
    assert "?[2Jtrain.py?" in said and "\x1b" not in said
    assert "[bold]" in said and "träin.py" in said
    assert [line[0] for line in said.splitlines()[1:3]] == ["a", "b"], "a line break is the table's own"
