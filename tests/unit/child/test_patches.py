"""Patches: idempotent, reversible in any order of use, and wearing the original's name."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from tuner.child.patches import instead, patch, unpatch_all


class Library:
    """Something to patch."""

    def method(self, x: int) -> int:
        """Doubles."""
        return 2 * x

    @staticmethod
    def function(x: int) -> int:
        """Trebles."""
        return 3 * x


def _plus_one(original: Any) -> Any:
    def replacement(*args: Any) -> Any:
        return original(*args) + 1

    return replacement


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    unpatch_all()


@pytest.mark.parametrize("orders", list(itertools.product(["patch", "unpatch"], repeat=4)))
def test_every_order_of_patching_and_unpatching(orders: tuple[str, ...]) -> None:
    patched = False
    for order in orders:
        if order == "patch":
            patch(Library, "method", _plus_one)
            patch(Library, "function", _plus_one)
            patched = True
        else:
            unpatch_all()
            patched = False
        assert Library().method(1) == 2 + patched
        assert Library.function(1) == 3 + patched


def test_a_patch_wears_the_originals_name() -> None:
    patch(Library, "method", _plus_one)
    assert (Library.method.__name__, Library.method.__doc__) == ("method", "Doubles.")


def test_a_static_method_stays_one() -> None:
    patch(Library, "function", _plus_one)
    assert isinstance(Library.__dict__["function"], staticmethod)
    assert Library().function(1) == 4


def test_a_library_without_the_attribute_is_told() -> None:
    with pytest.raises(AttributeError):
        patch(Library, "gone", _plus_one)


@pytest.mark.parametrize("own", [False, True])
def test_one_objects_method_is_another_for_a_while(own: bool) -> None:
    """Also where it raises, and where the object had a method of its own."""
    one, other = Library(), Library()
    if own:
        one.method = lambda x: 5 * x  # type: ignore[method-assign]
    with pytest.raises(KeyError), instead(one, "method", lambda x: x):
        assert (one.method(3), other.method(3)) == (3, 6)
        raise KeyError
    assert one.method(3) == (15 if own else 6)
    assert ("method" in vars(one)) is own


@pytest.mark.parametrize("name", ["listdir", "getcwd"])
def test_what_replaces_a_function_can_be_pickled(name: str) -> None:
    """As a pool of processes does: those of ``os`` say that they are ``posix``'s."""
    patch(os, name, _plus_one)
    replacement = getattr(os, name)
    assert pickle.loads(pickle.dumps(replacement)) is replacement
    unpatch_all()
    assert pickle.loads(pickle.dumps(getattr(os, name))) is getattr(os, name)
