"""Distribution strategies: those that the script makes, and the one that the config asks for in their place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Protocol

from ..patches import patch
from ..session import Session
from .types import Result, Strategy

DEFAULT = "default"
ONE_DEVICE = "one_device"
TPU = "tpu"
KINDS = {
    "MirroredStrategy": "mirrored", "OneDeviceStrategy": ONE_DEVICE, "TPUStrategy": TPU, "TPUStrategyV2": TPU,
    "CollectiveAllReduceStrategy": "multi_worker", "ParameterServerStrategyV2": "parameter_server",
    "CentralStorageStrategy": "central_storage",
}  # fmt: skip
# On the one device of a trial these do what TensorFlow does by itself.
_REPLACED = ("MirroredStrategy", "OneDeviceStrategy")
NO_STRATEGY = "the script's own loop runs on no strategy"
ENTERED = "the TPU trains what runs on TPUStrategy, and nothing else"
SEVERAL_REPLICAS = {
    "jit_compile": "XLA compiles for one device, and the script trains on {} replicas",
    "steps_per_execution": "TensorFlow fails at several steps in one call on {} replicas",
}
"""Knob → why it isn't turned there. Both end plain Keras: tests/end_to_end/test_tf_devices.py."""
UNUSED = (
    "the script's own loop calls no strategy's run, and so nothing of it trained on the TPU: it has to, with "
    "tf.distribute.get_strategy() as well"
)


class Distributed(Protocol):
    """A model of Keras, as far as it is known here."""

    @property
    def distribute_strategy(self) -> Strategy: ...


class StrategyWatch:
    """Records the strategies that are made; replaces the script's, or sets one before the first layer is made.

    ``entered``: the one that was put around a script on a device which trains nothing without it; None elsewhere.
    """

    def __init__(self, session: Session, tf: ModuleType) -> None:
        self.session = session
        self.tf = tf
        self.created: list[Strategy] = []
        self.replaced = 0
        self.entered: Strategy | None = None
        self.runs = 0
        self._begun = False

    @property
    def _name(self) -> str:
        """The kind that the config asks for, or the device cannot do without; "" where the script's own stays."""
        asked = self.session.knobs.wanted("strategy")
        return self.session.device.tensorflow_strategy if asked is None else str(asked)

    def install(self) -> None:
        """Called before the script makes any strategy."""
        if self._name:
            for name in _REPLACED:
                patch(self.tf.distribute, name, self._instead)
        applied = self.session.applied if self.session.request.config else None
        if applied is not None:
            applied.counts_devices(self.replicas)
        if self.session.measuring or applied is not None:
            patch(sys.modules["tensorflow.python.distribute.distribute_lib"].StrategyBase, "__init__", self._init)

    def _init(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(strategy: Strategy, *args: object, **kwargs: object) -> None:
            original(strategy, *args, **kwargs)
            if type(strategy).__name__ in KINDS and not self._begun:
                self.created.append(strategy)

        return __init__

    def _instead(self, original: Callable[..., Strategy]) -> Callable[..., Strategy]:
        def strategy(*args: object, **kwargs: object) -> Strategy:
            if not self.session.here:
                return original(*args, **kwargs)
            try:
                wanted = self._wanted()
            except Exception as error:
                self._cannot(error)
                return original(*args, **kwargs)
            self.replaced += 1
            return wanted

        return strategy

    def _cannot(self, error: Exception) -> None:
        """The config can't be had: that ends a trial. A run that isn't measured goes on as the script is written."""
        message = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        why = f"strategy {self._name} can't be had: {message}"
        self.session.note(why)
        if self.session.measuring:
            self.session.fail("unsupported", why)
            self.session.stop("the strategy can't be had", complete=False)

    def _wanted(self) -> Strategy:
        """A strategy of the kind that the config names. Raises what TensorFlow raises where there is none."""
        tf, name = self.tf, self._name
        if name == DEFAULT:
            default: Strategy = sys.modules["tensorflow.python.distribute.distribute_lib"]._get_default_strategy()
            return default
        self._begun = True  # what is made from here on isn't the script's
        if name == TPU:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
            on_tpu: Strategy = tf.distribute.TPUStrategy(resolver)
            self._enter(on_tpu)
            return on_tpu
        kind = sys.modules["tensorflow.python.distribute.one_device_strategy"].OneDeviceStrategy
        on_one: Strategy = kind(self.session.device.tensorflow_place)
        return on_one

    def _enter(self, strategy: Strategy) -> None:
        """Counts what runs on it, where the device needs it."""
        if self.session.device.tensorflow_strategy:
            self.entered = strategy
            patch(type(strategy), "run", self._running)

    def _running(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def run(strategy: Strategy, *args: object, **kwargs: object) -> Result:
            self.runs += 1
            return original(strategy, *args, **kwargs)

        return run

    def begin(self) -> None:
        """The first layer or optimizer is about to be made: from here on the runtime can't be configured any more."""
        wanted = self._name not in ("", DEFAULT) and not (self.created and not self.session.knobs.wants("strategy"))
        if self._begun or self.replaced or not wanted or not self.session.here:
            return
        self._begun = True
        try:
            self.tf.distribute.experimental_set_strategy(self._wanted())
        except Exception as error:
            self._cannot(error)

    def unused(self, fits: bool) -> str:
        """Why nothing has trained on the strategy that was entered, or "". ``fits``: whether ``Model.fit`` trains."""
        if self.entered is None:
            return ""
        self.session.facts.remark("TPUStrategy was entered around the script, which makes none for a TPU")
        return "" if fits or self.runs else UNUSED

    def replicas(self) -> int:
        """On how many devices the script's strategies train together; 1 without any."""
        return max((strategy.num_replicas_in_sync for strategy in self.created), default=1)

    def written(self) -> tuple[str, str]:
        """The kind of strategy that the script makes, and why that has to stay; "" where it may change."""
        kinds = sorted({KINDS[type(strategy).__name__] for strategy in self.created})
        if self.entered is not None and not kinds:
            return TPU, ENTERED
        if not kinds:
            return DEFAULT, ""
        if len(kinds) > 1:
            return kinds[0], f"the script makes several strategies: {', '.join(kinds)}"
        if self.replicas() > 1:
            return kinds[0], f"the script trains on {self.replicas()} replicas"
        return kinds[0], "" if kinds[0] in ("mirrored", ONE_DEVICE) else "the script chooses its cluster itself"

    def left_out(self) -> dict[str, str]:
        """Knobs that can't be turned on as many replicas as the script has, and why."""
        replicas = self.replicas()
        return {knob: why.format(replicas) for knob, why in SEVERAL_REPLICAS.items() if replicas > 1}

    def in_use(self, model: Distributed | None) -> str:
        """The kind of strategy that the model trains on, or the script's own loop where there is no model."""
        if model is not None:
            return KINDS.get(type(model.distribute_strategy).__name__, DEFAULT)
        return self._name if self.replaced else self.written()[0]
