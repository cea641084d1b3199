"""Distribution strategies: those that the script makes, and the one that the config asks for in their place."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ..patches import patch
from ..session import Session

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


class StrategyWatch:
    """Sees strategies made; replaces the script's, or sets one before the first layer is made."""

    def __init__(self, session: Session, tf: ModuleType) -> None:
        self.session = session
        self.tf = tf
        self.made: list[Any] = []
        self.replaced = 0
        self._begun = False

    def install(self) -> None:
        """Called before the script makes any strategy."""
        if self.session.wants("strategy"):
            for name in _REPLACED:
                patch(self.tf.distribute, name, self._instead)
        if self.session.measuring:
            patch(sys.modules["tensorflow.python.distribute.distribute_lib"].StrategyBase, "__init__", self._init)

    def _init(self, original: Any) -> Any:
        def __init__(strategy: Any, *args: Any, **kwargs: Any) -> None:
            original(strategy, *args, **kwargs)
            if type(strategy).__name__ in KINDS and not self._begun:
                self.made.append(strategy)

        return __init__

    def _instead(self, original: Any) -> Any:
        def strategy(*args: Any, **kwargs: Any) -> Any:
            if not self.session.here:
                return original(*args, **kwargs)
            self.replaced += 1
            return self._wanted()

        return strategy

    def _wanted(self) -> Any:
        """The strategy that the config names."""
        tf, name = self.tf, self.session.config["strategy"]
        if name == DEFAULT:
            return sys.modules["tensorflow.python.distribute.distribute_lib"]._get_default_strategy()
        self._begun = True  # what is made from here on isn't the script's
        if name == TPU:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
            return tf.distribute.TPUStrategy(resolver)
        one = sys.modules["tensorflow.python.distribute.one_device_strategy"].OneDeviceStrategy
        return one("/GPU:0" if self.session.device.startswith("cuda") else "/CPU:0")

    def begin(self) -> None:
        """The first layer or optimizer is about to be made: from here on the runtime can't be configured any more."""
        wanted = self.session.wants("strategy") and self.session.config["strategy"] != DEFAULT
        if self._begun or self.replaced or not wanted or not self.session.here:
            return
        self._begun = True
        try:
            self.tf.distribute.experimental_set_strategy(self._wanted())
        except Exception as error:
            told = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            self.session.fail("unsupported", f"strategy {self.session.config['strategy']}: {told}")
            self.session.stop("the strategy can't be had", complete=False)

    def written(self) -> tuple[str, str]:
        """What the script trains on, and why that has to stay; "" where it may change."""
        kinds = sorted({KINDS[type(strategy).__name__] for strategy in self.made})
        if not kinds:
            return DEFAULT, ""
        if len(kinds) > 1:
            return kinds[0], f"the script makes several strategies: {', '.join(kinds)}"
        replicas = max(strategy.num_replicas_in_sync for strategy in self.made)
        if replicas > 1:
            return kinds[0], f"the script trains on {replicas} replicas"
        return kinds[0], "" if kinds[0] in ("mirrored", ONE_DEVICE) else "the script chooses its cluster itself"

    def seen(self, model: Any) -> str:
        """What the model trains on, or the script's own loop where there is no model."""
        if model is not None:
            return KINDS.get(type(model.distribute_strategy).__name__, DEFAULT)
        return str(self.session.config["strategy"]) if self.replaced else self.written()[0]
