"""A framework's part of a rotation, made up."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.child.participants import Switcher
from tuner.child.records import Value


class Willing(Switcher):
    """Switches to whatever it is told to, and nothing comes of it."""

    def obstacle(self) -> str:
        return ""

    def refusal(self, config: Mapping[str, Value]) -> str:
        return ""

    def begin(self) -> None:
        return

    def to(self, config: Mapping[str, Value]) -> None:
        return

    def doubt(self, config: Mapping[str, Value]) -> str:
        return ""

    def put_back_weights(self) -> None:
        return
