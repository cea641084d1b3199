"""The memory that the ranks of one host share, as a trial gives it to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tuner.child.unison import bytes_for


@contextmanager
def shared_by(ranks: int) -> Iterator[int]:
    """The descriptor of the memory of so many ranks, none of which has taken a step."""
    descriptor = os.memfd_create("ranks")
    try:
        os.ftruncate(descriptor, bytes_for(ranks))
        yield descriptor
    finally:
        os.close(descriptor)
