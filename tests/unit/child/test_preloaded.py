"""What a fork server imports, and what those get that took a function before it was patched."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import random
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from tuner.child import patches
from tuner.child.preloaded import (
    Asked,
    ByChance,
    GlobalGenerator,
    InstalledOnly,
    NotInstalled,
    drawn_since,
    taken_by_now,
)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, types.ModuleType]]:
    """A library, and two modules that have taken a function of it: one before, and one after its import had ended."""
    made = {name: types.ModuleType(name) for name in ("made_library", "made_part", "made_user")}

    def save() -> str:
        return "original"

    made["made_library"].save = save  # type: ignore[attr-defined]
    for name in ("made_part", "made_user"):
        kind = type("Kind", (), {"static": staticmethod(save), "plain": save, "__module__": name})
        vars(made[name]).update(save=save, Kind=kind, table={"a": save, "b": 1}, other=os.getcwd)
        held = made[name].held = kind()  # type: ignore[attr-defined]
        held.save, held.table, held.__dict__["other"] = save, {None: save}, 1
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    yield made
    patches.unpatch_all()


@pytest.mark.slow
def test_who_took_it_later_gets_the_replacement(modules: dict[str, types.ModuleType]) -> None:
    library, part, user = modules.values()
    original = library.save
    before = patches.count()
    patches.patch(library, "save", lambda original: lambda: "replaced")
    patches.give_to_others([(before, {"made_library", "made_part"})])
    assert library.save() == user.save() == user.Kind.static() == user.table["a"]() == "replaced"
    assert user.held.save is user.held.table[None] is library.save
    assert part.held.save is part.held.table[None] is original
    assert user.Kind.__dict__["plain"] is library.save and user.table["b"] == 1 and user.other is os.getcwd
    assert part.save is part.Kind.static is part.table["a"] is original


def test_each_stage_has_its_own_modules(modules: dict[str, types.ModuleType]) -> None:
    library, part, _ = modules.values()
    before = patches.count()
    patches.patch(library, "save", lambda original: lambda: "replaced")
    patches.give_to_others([(before, frozenset()), (patches.count(), {"made_part"})])
    assert part.save() == "replaced", "it was there before the second stage, and not before the first"


def test_a_module_that_had_begun_keeps_what_it_had_by_then(modules: dict[str, types.ModuleType]) -> None:
    """It imports the library in the middle, and takes the rest of its names afterwards."""
    library, part, _ = modules.values()
    original = library.save
    names = {f"made_part:{name}" for name in ("save", "held")}
    before = patches.count()
    patches.patch(library, "save", lambda original: lambda: "replaced")
    patches.give_to_others([(before, {"made_library", *names})])
    assert part.save is original
    assert part.table["a"] is part.Kind.static is library.save


def test_what_has_begun_is_told_apart(modules: dict[str, types.ModuleType]) -> None:
    part = modules["made_part"]
    part.__spec__ = importlib.machinery.ModuleSpec("made_part", None)
    part.__spec__._initializing = True  # type: ignore[attr-defined]
    taken = taken_by_now()
    assert "made_library" in taken and "made_part:save" in taken
    assert "made_part" not in taken and "made_library:save" not in taken
    part.__spec__._initializing = False  # type: ignore[attr-defined]
    assert "made_part" in taken_by_now()


def test_defaults_of_functions_are_given_the_replacement(modules: dict[str, types.ModuleType]) -> None:
    """absl opens files by one."""
    library, part, user = modules.values()
    for module in (part, user):
        exec("def write(how=save, *, other=save, number=1): return how, other, number", vars(module))
        vars(module)["__name__"] = module.__name__
    original = library.save
    before = patches.count()
    patches.patch(library, "save", lambda original: lambda: "replaced")
    patches.give_to_others([(before, {"made_library", "made_part"})])
    assert user.write() == (library.save, library.save, 1)
    assert part.write() == (original, original, 1)


def test_what_an_installed_package_makes_without_a_file_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As six makes six.moves; what a finder of the user's makes is not."""
    spec = importlib.machinery.ModuleSpec("made_anew", None, is_package=True)
    finder = types.SimpleNamespace(find_spec=lambda name, path, target=None: spec if name == "made_anew" else None)
    strict = InstalledOnly([os.path.dirname(os.__file__) + os.sep])
    monkeypatch.setattr(sys, "meta_path", [strict, finder])
    spec.loader = importlib.util.LazyLoader(types.SimpleNamespace(exec_module=None))  # type: ignore[arg-type]
    assert strict.find_spec("made_anew", None) is spec
    spec.loader = type("Maker", (), {"__module__": __name__})()
    with pytest.raises(NotInstalled):
        strict.find_spec("made_anew", None)


def test_nothing_but_what_is_installed_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_by_a_user.py").write_text("raise RuntimeError('it runs')")
    (tmp_path / "made_package").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    strict = InstalledOnly([os.path.dirname(os.__file__) + os.sep])
    monkeypatch.setattr(sys, "meta_path", [strict, *sys.meta_path])
    for name in ("made_by_a_user", "made_package"):
        with pytest.raises(NotInstalled, match=name):
            __import__(name)
    assert isinstance(strict.find_spec("colorsys", None), importlib.machinery.ModuleSpec)
    assert strict.find_spec("time", None) is not None
    assert strict.find_spec("no_such_module_anywhere", None) is None


def test_what_was_refused_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library may try an import and go on whatever is raised: it isn't what it is in a fresh process then."""
    (tmp_path / "made_by_a_user.py").write_text("")
    (tmp_path / "made_to_try.py").write_text("try:\n    import made_by_a_user\nexcept:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    strict = InstalledOnly([os.path.dirname(os.__file__) + os.sep, str(tmp_path / "made_to_try.py")])
    monkeypatch.setattr(sys, "meta_path", [strict, *sys.meta_path])
    __import__("made_to_try")
    assert strict.refused == ["made_by_a_user"]


def test_what_numpy_has_drawn_is_counted() -> None:
    state = numpy.random.get_state()
    try:
        generator = GlobalGenerator()
        assert generator.drawn() == 0, "it isn't there"
        numpy.random.seed(5)
        generator.note(sys.modules[GlobalGenerator.NAME])
        assert generator.drawn() == 0
        numpy.random.rand(5)
        assert generator.drawn() == 10
        following = numpy.random.random()
        numpy.random.seed(5)
        numpy.random.bytes(4 * 10)
        assert numpy.random.random() == following
        numpy.random.seed(6)
        assert generator.drawn() is None
    finally:
        numpy.random.set_state(state)


def test_what_was_drawn_since_a_state_is_counted() -> None:
    random.seed(5)
    before = random.getstate()
    assert drawn_since(before) == 0
    random.getrandbits(24)
    random.random()  # of two numbers
    assert drawn_since(before) == 3
    for _ in range(700):
        random.getrandbits(32)
    assert drawn_since(before) == 703, "the generator has filled its table anew"
    random.seed(6)
    assert drawn_since(before) is None


def test_generators_that_an_import_made_without_a_seed_are_seeded_anew() -> None:
    """And no others: what has a seed gives the same numbers in each process."""
    module: Any = numpy.random.bit_generator
    seed, draw = random.Random.seed, module.randbits
    noted = ByChance()
    noted.note(module)
    by_chance: list[Any] = [random.Random(), numpy.random.default_rng(), numpy.random.RandomState(), random.Random(3)]
    by_chance[-1].seed()
    seeded: list[Any] = [
        random.Random(5), numpy.random.default_rng(2**127 + 1), numpy.random.RandomState(5), random.Random(),
    ]  # fmt: skip
    seeded[-1].seed(7)
    again = noted.found()
    assert random.Random.seed is seed and module.randbits is draw

    def drawn() -> list[float]:
        for seed_anew in again:
            seed_anew()
        return [float(each.random()) for each in by_chance]

    assert not set(drawn()) & set(drawn())
    assert [float(each.random()) for each in seeded] == [
        random.Random(5).random(), numpy.random.default_rng(2**127 + 1).random(),
        numpy.random.RandomState(5).random(), random.Random(7).random(),
    ]  # fmt: skip


def test_a_variable_that_is_read_is_noted_whether_it_is_there_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.delenv("RANK", raising=False)
    before = vars(type(os.environ))["__getitem__"]
    asked = Asked(("RANK", "LOCAL_RANK", "MASTER_PORT"))
    assert "HOME" in {**os.environ} and "WORLD_SIZE" not in os.environ
    assert os.getenv("RANK", "0") == "0" and os.environ["LOCAL_RANK"] == "3"
    assert asked.found() == ["LOCAL_RANK", "RANK"]
    assert vars(type(os.environ))["__getitem__"] is before
