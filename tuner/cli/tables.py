"""What the verbs that list things share: the type of argparse's verbs, and a plain table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subparsers = object


WIDE = 200
"""Columns where there is no terminal: what reads a pipe doesn't want folded lines."""


def show(made: Table) -> None:
    """Prints a table to standard output."""
    console = Console()
    console = console if console.is_terminal else Console(width=WIDE)
    console.print(made)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> Table:
    """A table without borders: legible without colour and when it is copied into an issue."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        # As Text: a "[...]" in somebody's path or message is no markup.
        made.add_row(*(Text(cell) for cell in row))
    return made
