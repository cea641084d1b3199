"""What is known of the Grain pipelines of one place of the user's code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..records import Value
from ..sources import DataSource
from . import PUT_AHEAD
from .pipeline import NO_READER, Pipeline

SINGLE = "the script reads in one thread, and nothing shows that several may read its data at once"
UNBUFFERED = "the script reads nothing ahead"
LASTING = "Grain's workers last as long as the iterator that started them"


@dataclass
class GrainSource(DataSource):
    """A ``DataLoader``, by where it is made, or a dataset, by where it is iterated.

    ``pipeline``: as the script makes it. ``written``: knob → the script's own value. ``refused``: knob → why it can't
    be turned. ``changed``: knobs that were. ``live``: knob → what the newest iterator works with. ``adds``: whether the
    config has given it workers. ``newest``: a weak reference to the newest iterator. ``made``: how many loaders were.
    """

    pipeline: Pipeline | None = None
    written: dict[str, Value] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    live: dict[str, Any] = field(default_factory=dict)
    adds: bool = False
    made: int | None = None
    newest: Callable[[], Any] = lambda: None


def as_written(pipeline: Pipeline) -> dict[str, Value]:
    """Knob → the script's own value."""
    written: dict[str, Value] = {"num_workers": pipeline.workers, "prefetch_factor": pipeline.buffer or 1, PUT_AHEAD: 0}
    if pipeline.reader is not None:
        written["read_threads"], written["read_buffer"] = pipeline.threads, pipeline.read_buffer
    return written


def refusals(pipeline: Pipeline) -> dict[str, str]:
    """Knob → why it can't be turned, as far as the pipeline shows it."""
    refused: dict[str, str] = {"persistent_workers": LASTING}
    if pipeline.fixed:
        refused["num_workers"] = pipeline.fixed
        if not pipeline.workers:
            refused["prefetch_factor"] = pipeline.fixed
    if pipeline.reader is None:
        return {**refused, "read_threads": NO_READER, "read_buffer": NO_READER}
    if pipeline.threads < 2:
        refused["read_threads"] = SINGLE if pipeline.threads else UNBUFFERED
        if not pipeline.threads:
            refused["read_buffer"] = UNBUFFERED
    return refused
