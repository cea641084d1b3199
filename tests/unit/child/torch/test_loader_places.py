"""What is known of the DataLoaders of one place: which were made for one iteration each, whatever they are equal to."""

from __future__ import annotations

import gc
import sysconfig
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin, seeded_model
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

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


def anew_by_a_library(*loaders: Any) -> list[Any]:
    """The same loaders as a library makes them anew, and as accelerate does."""
    names: dict[str, Any] = {"DataLoader": DataLoader}
    source = "def anew(loader):\n    return DataLoader(loader.dataset, batch_sampler=loader.batch_sampler)\n"
    exec(compile(source, f"{sysconfig.get_path('purelib')}/library/loaders.py", "exec"), names)
    return [names["anew"](loader) for loader in loaders]


def anew_by_accelerate(*loaders: Any) -> list[Any]:
    import accelerate

    return list(accelerate.Accelerator(cpu=True).prepare(*loaders))


@pytest.mark.usefixtures("torch_settings_kept")
@pytest.mark.parametrize("anew", [
    anew_by_a_library, pytest.param(anew_by_accelerate, marks=pytest.mark.slow),  # as that; its import takes 3 s
])  # fmt: skip
@pytest.mark.parametrize("sizes", [(4, 12), (4, 4)])
def test_a_loader_that_a_library_makes_anew_stands_for_the_one_with_its_sampler(
    begin: Any, sizes: tuple[int, int], anew: Callable[..., list[Any]]
) -> None:
    """Two loaders draw from the same data, as of a split by samplers: all that accelerate made counted as the second's,
    and a config that was to keep batches of 4 trained on batches of 12.
    """
    trial = begin()
    data = TensorDataset(torch.arange(36.0)[:, None])
    parts = SubsetRandomSampler(range(24)), SubsetRandomSampler(range(24, 36))
    written = [DataLoader(data, size, sampler=part) for size, part in zip(sizes, parts, strict=True)]
    training, validation = anew(*written)
    model, optimizer = seeded_model()
    for _ in range(4):
        for (x,) in training:
            optimizer.zero_grad()
            model(x.expand(-1, 5)).mean().backward()
            optimizer.step()
        with torch.no_grad():
            for (x,) in validation:
                model(x.expand(-1, 5))
    facts = trial.end()
    assert [loader["fetches"] for loader in facts["loaders"]] == [4 * 24 // sizes[0], 4 * 12 // sizes[1]]
    assert facts["training_loaders"] == [facts["loaders"][0]["key"]]
    assert facts["as_written"]["batch_size"] == sizes[0]
