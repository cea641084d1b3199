"""Who holds originals: found once, and looked for again only among those, and in what is new."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator

import pytest

from tuner.child import patches
from tuner.child.holders import Holders


def save() -> str:
    """What is replaced."""
    return "original"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module that has a function of its own, and another that took it; the collector of garbage is as it was then."""
    made, user = types.ModuleType("made_library"), types.ModuleType("made_user")
    vars(made).update(save=save)
    vars(user).update(took=save, table={"a": save})
    monkeypatch.setitem(sys.modules, "made_library", made)
    monkeypatch.setitem(sys.modules, "made_user", user)
    was_on = gc.isenabled()
    yield made
    patches.unpatch_all()
    (gc.enable if was_on else gc.disable)()


def a_module(name: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """One that is imported now, and takes the function into its names, a class and an object."""
    module = types.ModuleType(name)
    kind = type("Kind", (), {"static": staticmethod(save), "__module__": name})
    vars(module).update(took=save, Kind=kind, held=kind())
    vars(module)["held"].own = save
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_few_modules_are_looked_at_and_those_that_are_new(
    library: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders = Holders([save])
    new, anew = a_module("made_later", monkeypatch), a_module("json", monkeypatch)  # the latter instead of an old one
    scope = holders.scope([save])
    assert {name for name, _ in scope.modules} == {__name__, "made_library", "made_user", "made_later", "json"}
    before = patches.count()
    patches.patch(library, "save", lambda original: lambda: "replaced")
    patches.give_to_others([(before, {"made_library", __name__})], holders)
    assert sys.modules["made_user"].took() == sys.modules["made_user"].table["a"]() == "replaced"
    for module in (new, anew):
        assert module.took() == module.Kind.static() == module.held.own() == "replaced"
    assert save() == "original"


def test_a_module_is_looked_at_that_holds_it_in_a_class_or_a_table_alone(
    library: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, kept = (types.ModuleType(name) for name in ("made_class", "made_table"))
    vars(made)["Kind"] = type("Kind", (), {"static": staticmethod(save), "__module__": "made_class"})
    vars(kept)["table"] = {"a": save}
    for module in (made, kept):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    holders, before = Holders([save]), patches.count()
    patches.patch(library, "save", lambda original: lambda: "replaced")
    patches.give_to_others([(before, {"made_library", __name__})], holders)
    assert made.Kind.static() == kept.table["a"]() == "replaced"


def test_what_is_unknown_is_looked_for_everywhere(library: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "load", lambda: "another", raising=False)
    other = types.SimpleNamespace(load=library.load)
    holders = Holders([save])
    scope = holders.scope([save, library.load])
    assert {name for name, _ in scope.modules} >= {"os", "json", "made_library"}
    assert any(each is vars(other) for each in scope.referrers(library.load))


@pytest.mark.slow  # 3 s beside three others
def test_garbage_is_collected_again_behind_the_last_look(library: types.ModuleType) -> None:
    """What is made meanwhile stays among the newest objects, which are looked at."""
    for collects in (True, False):
        (gc.enable if collects else gc.disable)()
        holders = Holders([save])
        assert not gc.isenabled()
        made = [{"held": save, "number": number} for number in range(1000)]
        found = {*map(id, holders.scope([save]).referrers(save))}
        assert all(id(each) in found for each in made)
        holders.end()
        assert gc.isenabled() is collects
