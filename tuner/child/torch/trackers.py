"""Experiment trackers that write beside the script: their scalars are metrics.

Their logs are new files, which are put aside like others once the trial has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

from ..patches import patch
from ..session import Session
from .types import Result


def install_summary_writer(session: Session, module: ModuleType) -> None:
    """For ``torch.utils.tensorboard`` and tensorboardX."""
    if not session.measuring or not session.request.folder:
        return

    def one(original: Callable[..., Result]) -> Callable[..., Result]:
        def add_scalar(writer: object, tag: object, scalar_value: object, *args: object, **kwargs: object) -> Result:
            session.log(str(tag), scalar_value)
            return original(writer, tag, scalar_value, *args, **kwargs)

        return add_scalar

    def several(original: Callable[..., Result]) -> Callable[..., Result]:
        def add_scalars(
            writer: object, main_tag: object, tag_scalar_dict: object, *args: object, **kwargs: object
        ) -> Result:
            if isinstance(tag_scalar_dict, Mapping):
                for tag, value in tag_scalar_dict.items():
                    session.log(f"{main_tag}/{tag}", value)
            return original(writer, main_tag, tag_scalar_dict, *args, **kwargs)

        return add_scalars

    patch(module.SummaryWriter, "add_scalar", one)
    patch(module.SummaryWriter, "add_scalars", several)


TRACKERS = {
    "torch.utils.tensorboard.writer": install_summary_writer,
    "tensorboardX.writer": install_summary_writer,
}
