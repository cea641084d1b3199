"""Tables of what is in folders of anybody's."""

from __future__ import annotations

import pytest

from tuner.cli.tables import console_here, show
from tuner.events import Noted
from tuner.progress import view_for
from tuner.report.table import Table


def test_a_cell_does_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A study's folder may come from somebody else, with a script's name that would clear the screen."""
    show(Table(("folder", "script"), [("a\nb", "\x1b[2Jtrain.py\x07"), ("[bold]", "träin.py")]))
    said = capsys.readouterr().out
    assert "?[2Jtrain.py?" in said and "\x1b" not in said
    assert "[bold]" in said and "träin.py" in said
    assert [line[0] for line in said.splitlines()[1:3]] == ["a", "b"], "a line break is the table's own"


@pytest.mark.parametrize("size", ["0", "00", "²"])
def test_a_size_of_nothing_is_none(
    size: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the COLUMNS=0 that some terminals leave behind a study printed none of its trials."""
    monkeypatch.setenv("COLUMNS", size)
    monkeypatch.setenv("LINES", size)
    with view_for(console_here()) as view:
        view(Noted("a line"))
    assert "note: a line" in capsys.readouterr().out
    assert console_here().width >= 20 and console_here().height >= 5
    monkeypatch.setenv("COLUMNS", "61")
    assert console_here().width == 61
