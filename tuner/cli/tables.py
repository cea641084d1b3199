"""Prints a table: for the verbs that list things."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from tuner.cli.printable import printable
from tuner.report.table import Table

WIDE = 200
"""Columns without a terminal: whatever reads the pipe wants one line a row."""


def show(table: Table) -> None:
    """Prints a table to standard output."""
    console = Console()
    console = console if console.is_terminal else Console(width=WIDE)
    console.print(drawn(table))


def drawn(table: Table) -> RichTable:
    """A table without borders: legible without colour and when it is copied into an issue."""
    drawing = RichTable(box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        drawing.add_column(column, justify="right" if column in table.right else "left", overflow="fold")
    for row in table.rows:
        # As Text: a "[...]" in somebody's path or message is no markup. Nor does it do anything to the terminal.
        drawing.add_row(*(Text(printable(cell, lines=True)) for cell in row))
    return drawing
