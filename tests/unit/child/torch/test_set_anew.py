"""What a library's transform keeps of the sample that it is at is no state that workers would change copies of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.copied_data import Begin, Rows, left_out
from support.torch_trials import begin

__all__ = ["begin"]

LIBRARY = '''
import random

class Drawn:
    """As MONAI's transforms draw, and torchvision's newer ones."""
    chance = 0.5
    def randomize(self):
        self.is_done = random.random() < self.chance
        self.sizes = [random.random() for _ in range(3)]
        self.given = {"size": random.random()}
    def __call__(self, x):
        self.randomize()
        return x * self.sizes[0] if self.is_done else x * self.given["size"]

class Warming(Drawn):
    """Counts what it was asked for."""
    seen = 0
    def __call__(self, x):
        self.seen = self.seen + 1
        return super().__call__(x) * self.seen / 96

class Mixed:
    """Adds the sample before, which it keeps itself."""
    before = 0.0
    def __call__(self, x):
        x, self.before = x + self.before, float(x.mean())
        return x

class Kept(Mixed):
    """The same by another method."""
    def keep(self, x):
        self.before = float(x.mean())
    def __call__(self, x):
        mixed = x + self.before
        self.keep(x)
        return mixed

class Asking:
    """The same, read by another method as well."""
    before = 0.0
    def keep(self, x):
        self.before = float(x.mean())
    def mixed(self, x):
        return x + self.before
    def __call__(self, x):
        mixed = self.mixed(x)
        self.keep(x)
        return mixed

class Within:
    """The same by a method that does all of it."""
    before = 0.0
    def mix(self, x):
        mixed, self.before = x + self.before, float(x.mean())
        return mixed
    def __call__(self, x):
        return self.mix(x)

class Seldom:
    """Keeps one now and then."""
    before = 0.0
    def __call__(self, x):
        if random.random() < 0.5:
            self.before = float(x.mean())
        return x + self.before

class Either:
    """Sets one on each way that leads to where it is read."""
    size = 1.0
    def __call__(self, x):
        if random.random() < 0.3:
            self.size = 0.5
        elif random.random() < 0.6:
            self.size = 1.0
        else:
            self.size = random.random()
        return x * self.size

class Mostly:
    """Sets one on all ways but one, on which that of the sample before is read."""
    size = 1.0
    def __call__(self, x):
        if random.random() < 0.3:
            self.size = 0.5
        elif random.random() < 0.6:
            self.count = 1
        else:
            self.size = random.random()
        return x * self.size

class Sure(Drawn):
    """Draws under conditions, and reads under the same; as MONAI's noise."""
    noise = 0.0
    def randomize(self):
        super().randomize()
        if not self.is_done:
            return None
        self.noise = random.random()
    def __call__(self, x, randomize=True):
        if randomize:
            self.randomize()
        if random.random() < 0.5:
            self.shift = random.random()
            x = x + self.shift
        return x + self.noise if self.is_done else x

class Told(Drawn):
    """Is told how often, by a method of its own, which the training calls."""
    def set_chance(self, chance):
        self.chance = chance
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of an installed package."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "drawing_transforms.py").write_text(LIBRARY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    yield import_module("drawing_transforms")
    del sys.modules["drawing_transforms"]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Drawn", ""), ("Sure", ""), ("Warming", "seen"), ("Mixed", "before"), ("Kept", "before"), ("Asking", "before"),
        ("Within", "before"), ("Seldom", "before"), ("Told", "chance"), ("Either", ""), ("Mostly", "size"),
    ],
)  # fmt: skip
def test_what_a_transform_draws_for_each_sample_is_no_reason(
    begin: Begin, library: Any, kind: str, changes: str
) -> None:
    """``_do_transform`` of MONAI's took the workers from every script that augments with it."""
    transform = getattr(library, kind)()
    tell: Callable[[], None] = lambda: transform.set_chance(transform.chance * 0.9)  # noqa: E731  # as the others
    found = left_out(begin, Rows(transform), tell if kind == "Told" else lambda: None).get("num_workers", "")
    assert found.startswith(f"dataset.transform.{changes} changes") if changes else found == ""


class Own:
    """The same of the script's, whose code may read it before it is set."""

    size = 1.0

    def __call__(self, x: Any) -> Any:
        x, self.size = x * self.size, float(x.sum()) / 96
        return x


def test_that_of_the_script_s_own_is_one(begin: Begin) -> None:
    assert left_out(begin, Rows(Own()))["num_workers"].startswith("dataset.transform.size changes")
