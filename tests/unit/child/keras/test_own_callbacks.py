"""What the script's own callbacks set, as their code shows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tuner.child.keras.callbacks import sets_rate, stored
from tuner.child.keras.freezing import what_is_set


class Annealing:
    model: Any
    best, count = 0.0, 0

    def __init__(self, model: Any) -> None:
        model.width = 8

    def on_epoch_begin(self, epoch: int) -> None:
        self.best = self.model.loss
        self._warm(epoch)

    def _warm(self, epoch: int) -> None:
        self.count += 1
        self.model.layers[1].seen += 1

        def beta() -> None:
            self.model.layers[0].rate = 0.5
            self.within = 1
        self.model.beta = min(1.0, epoch / 3)
        beta()


class ByName:
    model: Any

    def on_epoch_end(self, epoch: int) -> None:
        setattr(self.model, "gamma", epoch)  # noqa: B010  # as scripts do


class Given:
    """Is told what to set, as one that serves several models is."""
    model: Any

    def __init__(self, name: str) -> None:
        self.name, self.monitor = name, "loss"

    def on_epoch_end(self, epoch: int) -> None:
        setattr(self.model, self.name, epoch)

    def on_train_end(self) -> None:
        print(self.monitor)


def anneal(model: Any, epoch: int) -> None:
    model.warmth = epoch


class Apart:
    model: Any

    def __init__(self) -> None:
        self.seen = {"loss": 0.0}

    def on_epoch_end(self, epoch: int) -> None:
        self.seen["loss"] = epoch
        anneal(self.model, epoch)
        self.model.shares["kl"] = epoch
        self.model.parts[epoch] += 1


class Shown:
    """Keeps what it shows, by a function that knows it as well."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}

    def on_epoch_end(self, epoch: int) -> None:
        def show() -> None:
            print(self.losses)
        self.losses[epoch] = epoch
        self.losses[epoch] += 1
        show()


class Through:
    model: Any

    def on_epoch_end(self, epoch: int) -> None:
        self.model.set_share(epoch)


class Later:
    model: Any

    def on_epoch_begin(self, epoch: int) -> None:
        if epoch > 100:
            self.model.optimizer.learning_rate = 0.1


class Assigning:
    model: Any

    def on_epoch_begin(self, epoch: int) -> None:
        self.model.optimizer.learning_rate.assign(0.1)


class Reading:
    model: Any

    def on_epoch_begin(self, epoch: int) -> None:
        self.rate = float(self.model.optimizer.learning_rate)


def test_what_is_set_on_others_is_told_with_who_sets_it() -> None:
    class Model:
        width = 0

    given = Reading()
    given.on_epoch_end = lambda model: setattr(model, "delta", 1)  # type: ignore[attr-defined]  # as LambdaCallback
    assert stored([Annealing(Model())]) == dict.fromkeys(("rate", "beta", "seen"), "Annealing")
    assert stored([ByName()]) == {"gamma": "ByName"}
    assert "delta" in stored([given])
    assert stored([Given("alpha")]) == {"alpha": "Given"}
    assert stored([Apart()]) == dict.fromkeys(("shares", "parts", "warmth"), "Apart")
    assert stored([Shown()]) == {}


def test_what_a_method_of_the_model_sets_for_a_callback_is_told_as_what_that_sets() -> None:
    class Model:
        share = 0.0

        def train_step(self, data: Any) -> None:
            self.steps = 1

        def set_share(self, share: float) -> None:
            self._take(share)

        def _take(self, share: float) -> None:
            self.share = share

    assert stored([Through()], [Model]) == {"share": "Through"}
    assert stored([Reading()], [Model]) == {}


class Growing:
    share, epoch = 0.0, 0
    loss = "mse"

    def train_step(self, data: float) -> float:
        return self.share * data

    def set_share(self, share: float) -> None:
        self.epoch = int(share)

    def grow(self, epoch: int) -> None:
        self.share = epoch / 10

    def _flatten_layers(self) -> list[Any]:
        return [self]


def test_what_a_callback_calls_of_the_model_itself_is_told() -> None:
    """As ``LambdaCallback(on_epoch_begin=model.grow)`` has it."""
    model, given = Growing(), Reading()
    given.on_epoch_end = model.grow  # type: ignore[attr-defined]
    assert stored([given], [Growing]) == {"share": "Reading"}
    assert "sets share" in what_is_set(model, stored([given], [Growing]))  # type: ignore[arg-type]  # as a model has it


def test_what_is_set_and_nowhere_read_stands_still_in_no_graph() -> None:
    model = Growing()
    assert stored([Through()], [Growing]) == {"epoch": "Through"}
    assert what_is_set(model, stored([Through()], [Growing])) == ""  # type: ignore[arg-type]  # as a model has it


class State:
    warmth = share = 0.0


state = State()
heat = 0.0
settings = {"chill": 0.0}


class Sets:
    """Sets what the step reads past the methods of its model."""

    model: Any

    def on_epoch_begin(self, epoch: int) -> None:
        global heat
        heat = settings["chill"] = epoch
        self.model.share = state.warmth = epoch
        self.model.optimizer.momentum = 0.9


def weighed(model: Any) -> float:
    return float(model.share)


class Plain:
    share = 0.0

    def train_step(self, data: float) -> float:
        return data

    def _flatten_layers(self) -> list[Any]:
        return [self]


class ByProperty(Plain):
    @property
    def beta(self) -> float:
        return self.share / 10

    def train_step(self, data: float) -> float:
        return self.beta * data


class ByFunction(Plain):
    def train_step(self, data: float) -> float:
        return weighed(self) * data


def around(held: State) -> Any:
    return lambda y, found: held.warmth * (y - found)


@pytest.mark.parametrize(
    ("kind", "compiled", "read"),
    [
        (ByProperty, {}, "share"),
        (ByFunction, {}, "share"),
        (Plain, {"loss": lambda y, found: state.warmth * (y - found)}, "warmth"),
        (Plain, {"loss": [around(state)]}, "warmth"),
        (Plain, {"loss": {"out": lambda y, found: heat * (y - found)}}, "heat"),
        (Plain, {"loss": lambda y, found: settings["chill"] * (y - found)}, "settings"),
        (Plain, {"optimizer": SimpleNamespace(momentum=0.5)}, "momentum"),
        (Plain, {"loss": lambda y, found: y - found, "optimizer": SimpleNamespace()}, ""),
    ],
)
def test_what_a_step_reads_past_the_methods_of_its_model_is_read(kind: type, compiled: Any, read: str) -> None:
    """A graph would go on with it as it was at first: the eager step was given up for that, and "verified"."""
    model = kind()
    vars(model).update({"loss": "mse", "optimizer": None, **compiled})
    told = what_is_set(model, stored([Sets()], [kind]))
    assert told == (f"Sets sets {read}, which the step reads, and which would stand still in a graph" if read else "")


@pytest.mark.parametrize(("callback", "sets"), [(Later, True), (Assigning, True), (Reading, False)])
def test_a_rate_that_is_set_shows_before_the_epoch_in_which_it_is(callback: type, sets: bool) -> None:
    assert sets_rate([callback()]) is sets
