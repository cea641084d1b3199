"""Instruments TensorFlow: installs the watches, and hands over what their loops count and saw."""

from __future__ import annotations

import importlib
import importlib.util
import math
from types import ModuleType
from typing import Any

from .session import Session
from .tf_loops import LoopWatch

_adapter: TensorFlowAdapter | None = None


def install(session: Session, tf: ModuleType) -> None:
    """Called right after ``import tensorflow``."""
    global _adapter
    _adapter = TensorFlowAdapter(session, tf)
    _adapter.install()


def install_keras(session: Session, keras: ModuleType) -> None:
    """Called right after ``import keras``, which has imported its backend."""
    if _adapter is not None and keras.config.backend() == "tensorflow":
        _adapter.loops.note_keras(keras)


class TensorFlowAdapter:
    """One trial's watches on TensorFlow."""

    def __init__(self, session: Session, tf: ModuleType) -> None:
        self.session = session
        self.tf = tf
        self.datasets = _dataset_watch(session, tf)
        self.loops = LoopWatch(session, tf, self.datasets)

    def install(self) -> None:
        """Patches; nothing of the script's has run yet."""
        session = self.session
        session.recorder.emit("framework", name="tensorflow", version=self.tf.__version__, device=session.device)
        if self.datasets is not None:
            self.datasets.install()
        self.loops.install()
        if session.measuring:
            session.clock.synchronize = self.loops.synchronize
            session.clock.activity = self.loops.activity
            session.clock.on_block = self._on_block
            session.observers += [] if self.datasets is None else [self.datasets.observe]
            session.observers.append(self.loops.observe)

    def _on_block(self) -> None:
        loss = self.loops.take_loss()
        if loss is None:
            return
        self.session.recorder.emit("loss", samples=self.session.clock.progress, value=loss)
        if not math.isfinite(loss):
            self.session.fail("nan", f"the training loss became {loss}")
            self.session.stop("the loss is not finite", complete=False)


def _dataset_watch(session: Session, tf: ModuleType) -> Any:
    if importlib.util.find_spec(".tf_data", __package__) is None:
        return None
    return importlib.import_module(".tf_data", __package__).DatasetWatch(session, tf)
