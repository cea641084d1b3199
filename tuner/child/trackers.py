"""Experiment trackers that write beside the script: during a trial their logs go to the trial's folder."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from .patches import patch
from .session import Session

FOLDER = "tensorboard"


def install_summary_writer(session: Session, module: ModuleType) -> None:
    """For ``torch.utils.tensorboard`` and tensorboardX: a study's trials aren't runs of the user's."""
    if not session.measuring or not session.folder:
        return

    def init(original: Any) -> Any:
        def __init__(writer: Any, log_dir: Any = None, *args: Any, **kwargs: Any) -> None:
            for name in ("logdir", "log_dir"):
                kwargs.pop(name, None)
            original(writer, os.path.join(session.folder, FOLDER), *args, **kwargs)

        return __init__

    patch(module.SummaryWriter, "__init__", init)


ADAPTERS = {
    "torch.utils.tensorboard.writer": install_summary_writer,
    "tensorboardX.writer": install_summary_writer,
}
