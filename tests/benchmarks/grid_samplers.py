"""The samplers that are compared on recorded grids: ours, Optuna's, SMAC's, and the orders of tools for training.

Each gets what its authors would give it: configs by their indices on the axes, a measurement of the script as written,
no charge for proposing what was tried already or what the grid's constraints forbid, and failures told as its
documentation says. None but ours knows what a knob is.
"""

from __future__ import annotations

import itertools
import logging
import random
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import optuna
from grid_ours import Ours, OursByReading
from grid_players import Fastest, Player, ThenFinals
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from tuner.model import BASELINE, Config, Value
from tuner.search.history import History
from tuner.search.tpe import ASKS, neighbour
from tuner.space.resolved import Axis, ResolvedSpace
from tuner.storage.grid_space import configs_of

BATCH = "batch_size"
PLATEAU = 1.05
"""DeepSpeed's tuner goes on to the next batch size while that gains so much, by its own constant of 5%."""
EARLY_STOPPING = 5
"""And ends after so many experiments that brought nothing: the default of ``tuner_early_stopping``."""
WORKS = "works"
AND_FINALS = " and finals"
TRIALS_BEFORE_FINALS = 20
"""Of others' searches that finals follow, whose four runs in each of five rounds make 40 of it."""


class Random(Fastest):
    """Each config as likely as any other."""

    def __init__(self, space: ResolvedSpace, seed: int) -> None:
        self._configs = [config for config in configs_of(space) if config]
        random.Random(seed).shuffle(self._configs)

    def propose(self, history: History) -> Config | None:
        """The next one in an order that the seed gives."""
        return next((config for config in self._configs if history.find(config) is None), None)


class _Indexed(Fastest):
    """What proposes indices on the axes. Repeats and what the grid forbids cost nothing; see ``again``."""

    def __init__(self, space: ResolvedSpace, seed: int) -> None:
        self._space = space
        self._random = Random(space, seed)
        self._chance = random.Random(seed)
        self._told = 0

    def propose(self, history: History) -> Config | None:
        """Tells what came of the trials since, and asks until it proposes something new, ``asks`` times at most. After
        that comes an untried neighbour of the best, on which ours falls back, too.
        """
        for trial in history.trials[self._told :]:
            self.tell(self._space.indices_of(trial.config), history.gain(trial))
        self._told = len(history.trials)
        for _ in range(self.asks):
            indices = self.ask()
            if indices is None:
                break
            config = self._space.config_of(indices)
            if not self._space.allows(config):
                self.again(indices, None, known=False)
                continue
            before = history.find(config)
            if before is None:
                return config
            self.again(indices, history.gain(before), known=True)
        found = neighbour(history, self._chance)
        return found.config if found is not None else self._random.propose(history)

    asks = ASKS

    def ask(self) -> Mapping[str, int] | None:
        """Knob → index."""
        raise NotImplementedError

    def tell(self, indices: Mapping[str, int], gain: float | None) -> None:
        """What a config came to; None where it can't work."""
        raise NotImplementedError

    def again(self, indices: Mapping[str, int], gain: float | None, *, known: bool) -> None:
        """It proposed what was run before (``known``), or what the grid forbids.

        Told to SMAC, which would ask for it for ever. Optuna's samplers draw anew, and would take a repeat for a second
        reading.
        """


class Optuna(_Indexed):
    """One of Optuna's samplers. What can't work is PRUNED with a violated constraint, or for the Gaussian process
    COMPLETE with the worst value so far and the constraint: it learns nothing from a pruned trial.
    """

    def __init__(
        self, space: ResolvedSpace, seed: int, sampler: optuna.samplers.BaseSampler, *, ordered: bool = False,
        completes: bool = False, asks: int = ASKS,
    ) -> None:  # fmt: skip
        super().__init__(space, seed)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.asks = asks
        self._completes = completes
        self._worst = 1.0
        self._study = optuna.create_study(sampler=sampler, direction="maximize")
        self._distributions: dict[str, BaseDistribution] = {
            axis.knob.name: _distribution(axis, ordered=ordered) for axis in space.axes
        }

    def ask(self) -> Mapping[str, int]:
        """The trial that Optuna opens for it is closed at once: what comes of it is added once it is known."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asked = self._study.ask(self._distributions)
        self._study.tell(asked, state=TrialState.FAIL)
        return {name: int(value) for name, value in asked.params.items()}

    def tell(self, indices: Mapping[str, int], gain: float | None) -> None:
        """Adds it as a finished trial."""
        self._worst = min(self._worst, gain) if gain is not None else self._worst
        complete = gain is not None or self._completes
        self._study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.COMPLETE if complete else TrialState.PRUNED,
                value=gain if gain is not None else self._worst if complete else None,
                params={name: indices[name] for name in self._distributions}, distributions=self._distributions,
                constraints={WORKS: -1.0 if gain is not None else 1.0},
            )
        )


class Smac(_Indexed):
    """SMAC3's facade for hyperparameters: random forests, expected improvement. What can't work is CRASHED."""

    def __init__(self, space: ResolvedSpace, seed: int) -> None:
        super().__init__(space, seed)
        smac, spaces = _smac()
        logging.getLogger("smac").setLevel(logging.ERROR)
        configspace = spaces.ConfigurationSpace(seed=seed)
        for axis in space.axes:
            choices = list(range(len(axis.values)))
            name, written = axis.knob.name, axis.as_written
            if axis.knob.ordered:
                configspace.add(spaces.UniformIntegerHyperparameter(name, 0, choices[-1], default_value=written))
            else:
                configspace.add(spaces.CategoricalHyperparameter(name, choices, default_value=written))
        self._spaces, self._configspace, self._runhistory = spaces, configspace, smac.runhistory
        self._exhausted: type[Exception] = smac.main.exceptions.ConfigurationSpaceExhaustedException
        self._is_through = False
        self._worst = 1.0
        self._asked: dict[tuple[tuple[str, int], ...], Any] = {}
        folder = tempfile.mkdtemp(prefix="smac-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        scenario = smac.Scenario(
            configspace, deterministic=True, n_trials=10_000, seed=seed, output_directory=Path(folder)
        )
        facade = smac.HyperparameterOptimizationFacade
        self._facade = facade(
            scenario, _never_called, overwrite=True, logging_level=False,
            initial_design=facade.get_initial_design(scenario, n_configs=min(10, 2 * len(space.axes))),
        )  # fmt: skip

    def ask(self) -> Mapping[str, int] | None:
        """The next one of its queue; None once it has been through its space."""
        if self._is_through:
            return None
        try:
            info = self._facade.ask()
        except self._exhausted:
            self._is_through = True
            return None
        indices = {name: int(value) for name, value in dict(info.config).items()}
        self._asked[tuple(sorted(indices.items()))] = info
        return indices

    def tell(self, indices: Mapping[str, int], gain: float | None) -> None:
        """As the answer to what it asked for, else as a trial of its own."""
        self._worst = min(self._worst, gain) if gain is not None else self._worst
        info = self._asked.pop(tuple(sorted(indices.items())), None)
        if info is None:
            config = self._spaces.Configuration(self._configspace, values=dict(indices))
            info = self._runhistory.TrialInfo(config, seed=0)
        status = self._runhistory.StatusType.SUCCESS if gain is not None else self._runhistory.StatusType.CRASHED
        value = self._runhistory.TrialValue(cost=1 / (gain if gain is not None else self._worst), status=status)
        self._facade.tell(info, value, save=False)

    def again(self, indices: Mapping[str, int], gain: float | None, *, known: bool) -> None:
        """It gets the result of the config that means the same."""
        self.tell(indices, gain)


class BatchDoubling(Fastest):
    """Doubles the batch until it doesn't fit, and takes the largest that did, as Lightning's BatchSizeFinder does and
    accelerate's ``find_executable_batch_size`` from the other side. Neither looks at the rate.
    """

    probes = False

    def __init__(self, space: ResolvedSpace, seed: int) -> None:
        self._configs = [config for config in _batches(space) if space.allows(config)]

    def propose(self, history: History) -> Config | None:
        """The next larger one, unless one failed."""
        for config in self._configs:
            trial = history.find(config)
            if trial is None:
                return config
            if history.gain(trial) is None:
                return None
        return None

    def recommend(self, history: History) -> Config:
        """The largest that worked."""
        fit = BASELINE
        for config in self._configs:
            trial = history.find(config)
            if trial is None or history.gain(trial) is None:
                break
            fit = config
        return fit


class DeepSpeedOrder(Fastest):
    """The order of DeepSpeed's autotuner: micro-batches first, larger ones while they gain 5%, then all the rest in
    the order of the grid beside the best batch, until five in a row bring nothing.
    """

    def __init__(self, space: ResolvedSpace, seed: int) -> None:
        self._space = space
        self._batches = [config for config in _batches(space) if space.allows(config)]

    def propose(self, history: History) -> Config | None:
        """The next of either stage."""
        best, batch = 1.0, BASELINE
        for config in self._batches:
            trial = history.find(config)
            if trial is None:
                return config
            gain = history.gain(trial)
            if gain is None or gain < best * PLATEAU:
                break
            best, batch = gain, config
        since = 0
        for config in self._beside(batch):
            trial = history.find(config)
            if trial is None:
                return config
            gain = history.gain(trial)
            best, since = (gain, 0) if gain is not None and gain > best else (best, since + 1)
            if since >= EARLY_STOPPING:
                return None
        return None

    def _beside(self, batch: Config) -> Iterable[Config]:
        axes = [axis for axis in self._space.axes if axis.knob.name != BATCH]
        names = [axis.knob.name for axis in axes]
        size: dict[str, Value] = {BATCH: batch[BATCH]} if BATCH in batch else {}
        seen = {batch}
        for values in itertools.product(*(axis.values for axis in axes)):
            config = self._space.canonical({**size, **dict(zip(names, values, strict=True))})
            if config not in seen and self._space.allows(config):
                seen.add(config)
                yield config


def _batches(space: ResolvedSpace) -> Iterable[Config]:
    """The larger batch sizes by themselves, in their order."""
    for axis in space.axes:
        if axis.knob.name == BATCH:
            yield from (space.canonical({BATCH: value}) for value in axis.values[axis.as_written + 1 :])


def _distribution(axis: Axis, *, ordered: bool) -> BaseDistribution:
    if ordered or axis.knob.ordered:
        return IntDistribution(0, len(axis.values) - 1)
    return CategoricalDistribution(tuple(range(len(axis.values))))


def _never_called(config: Any, seed: int = 0) -> float:
    raise AssertionError("what it proposes is served by the grid")


def _smac() -> tuple[Any, Any]:
    """SMAC3 and its spaces. Raises ``ImportError`` where they aren't installed."""
    import ConfigSpace
    import smac
    import smac.main.exceptions
    import smac.runhistory

    return smac, ConfigSpace


def _tpe(space: ResolvedSpace, seed: int) -> Player:
    return Optuna(space, seed, optuna.samplers.TPESampler(seed=seed))


def _tpe_and_finals(space: ResolvedSpace, seed: int) -> Player:
    return ThenFinals(_tpe(space, seed), TRIALS_BEFORE_FINALS)


def _gp_and_finals(space: ResolvedSpace, seed: int) -> Player:
    return ThenFinals(_gp(space, seed), TRIALS_BEFORE_FINALS)


def _gp(space: ResolvedSpace, seed: int) -> Player:
    # Told of a repeat it would propose the same again, and each proposal takes it half a second.
    return Optuna(space, seed, optuna.samplers.GPSampler(seed=seed), completes=True, asks=2)


def _qmc(space: ResolvedSpace, seed: int) -> Player:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = optuna.samplers.QMCSampler(seed=seed, scramble=True, warn_independent_sampling=False)
    return Optuna(space, seed, sampler, ordered=True)


PLAYERS: Mapping[str, Callable[[ResolvedSpace, int], Player]] = {
    "autotune": Ours, "autotune by reading": OursByReading, "Optuna TPE": _tpe, "Optuna GP": _gp,
    f"Optuna TPE{AND_FINALS}": _tpe_and_finals, f"Optuna GP{AND_FINALS}": _gp_and_finals, "SMAC3": Smac,
    "QMC": _qmc, "random": Random,
    "DeepSpeed order": DeepSpeedOrder, "batch doubling": BatchDoubling,
}  # fmt: skip


def missing(name: str) -> str:
    """Why a sampler can't be had here, or ""."""
    if name != "SMAC3":
        return ""
    try:
        _smac()
    except ImportError as error:
        return f"{error}; install it with: pip install -e '.[benchmark]'"
    return ""
