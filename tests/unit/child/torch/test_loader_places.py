"""What is known of the DataLoaders of one place: which were made for one iteration each, whatever they are equal to."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from support.torch_trials import begin
from torch.utils.data import DataLoader

from tuner.child.torch.loader_places import Loader

__all__ = ["begin"]


class Alike(DataLoader):  # type: ignore[misc]  # noqa: PLW1641  # PyTorch isn't typed; what has no hash is asked here
    """Equal to each other, and without a hash: Python takes it away where a class says what is equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)


def iterations(entry: Loader, *rounds: list[DataLoader[Any]]) -> list[bool]:
    """Whether each had a loader of its own, after each round. A round's loaders are made before it."""
    found = list[bool]()
    for loaders in rounds:
        entry.made += sum(loader not in rounds[0] for loader in loaders) if found else len(loaders)
        for loader in loaders:
            iterator: Any = iter(loader)
            entry.begins(0.0)
            entry.begins_with(loader, iterator)
            entry.start_ends(0.0)
        found.append(entry.is_made_for_each)
    return found


def loaders(count: int) -> list[DataLoader[Any]]:
    return [DataLoader(list(range(4))) for _ in range(count)]


def test_those_of_one_line_that_are_iterated_again_are_made_for_no_iteration() -> None:
    together = loaders(3)
    assert iterations(Loader("place", "place"), together, together) == [False, False]


def test_one_for_each_iteration_and_three_for_each_are_told() -> None:
    assert iterations(Loader("place", "place"), loaders(1), loaders(1), loaders(1)) == [False, True, True]
    assert iterations(Loader("place", "place"), loaders(3), loaders(3)) == [False, True]


@pytest.mark.usefixtures("torch_settings_kept")
def test_loaders_without_a_hash_train_as_written_and_are_told_apart(begin: Any) -> None:
    trial = begin()
    made = [Alike(list(range(8 * number)), batch_size=2) for number in (1, 2)]
    assert [len(list(loader)) for _ in range(2) for loader in made] == [4, 8, 4, 8]
    facts = trial.end()
    assert [(loader["made"], loader["fetches"]) for loader in facts["loaders"]] == [(1, 8), (1, 16)]
    del made
    gc.collect()
