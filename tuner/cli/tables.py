"""Where verbs print, and how they print a table."""

from __future__ import annotations

import os
import shutil

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from tuner.cli.printable import printable
from tuner.report.table import Table

WIDE = 200
"""Columns without a terminal: whatever reads the pipe wants one line a row."""


def show(table: Table) -> None:
    """Prints a table to standard output."""
    console = console_here()
    console = console if console.is_terminal else Console(width=WIDE)
    console.print(drawn(table))


def console_here() -> Console:
    """Standard output, as wide and high as its terminal, or as ``COLUMNS`` and ``LINES`` say.

    A 0 there is no size: terminals without one leave it in the environment, and rich would print nothing.
    """
    here = shutil.get_terminal_size()
    return Console(
        width=here.columns if _is_no_size("COLUMNS") else None, height=here.lines if _is_no_size("LINES") else None
    )


def _is_no_size(variable: str) -> bool:
    """Whether rich would take the variable for a number, and it is no size."""
    given = os.environ.get(variable, "")
    return given.isdigit() and not (given.isdecimal() and int(given))


def drawn(table: Table) -> RichTable:
    """A table without borders: legible without colour and when it is copied into an issue."""
    drawing = RichTable(box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        drawing.add_column(column, justify="right" if column in table.right else "left", overflow="fold")
    for row in table.rows:
        # As Text: a "[...]" in somebody's path or message is no markup. Nor does it do anything to the terminal.
        drawing.add_row(*(Text(printable(cell, lines=True)) for cell in row))
    return drawing
