"""What a verb of the command line has to offer."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subparsers = object


class Verb(Protocol):
    """A module with these names. It parses its options and hands over to what does the work.

    ``TAKES_SCRIPT_ARGUMENTS``: whether the user's script may have arguments of its own after ``--``.
    """

    @property
    def TAKES_SCRIPT_ARGUMENTS(self) -> bool: ...

    def add_parser(self, verbs: Subparsers) -> None:
        """Adds the verb's options and help."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Does what was asked for and gives the exit status.

        ``arguments.script_args`` are those after ``--``, None without one. Raises ``AutotuneError``: whoever calls it
        prints the message and the hint.
        """
