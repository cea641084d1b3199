"""Whether a trial ran out of nothing but what it was allowed of a memory: a higher limit may let it through. Pure."""

from __future__ import annotations

import re

from tuner.runner.classify import DEVICE_OOM, HOST_OOM, EndedBy
from tuner.runner.request import Limits

# PyTorch's own text; "allowed" is said by a process that may not take all of its card.
_SAID_BY_TORCH = re.compile(
    r"Tried to allocate (\d+(?:\.\d+)?) (bytes|[KMGT]iB)\..{0,200}? of which (\d+(?:\.\d+)?) (bytes|[KMGT]iB) is free\."
    r".{0,400}? allowed; ",
    re.DOTALL,
)
_UNITS = {"bytes": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4}


def limit_exceeded(reason: str, ended_by: EndedBy | None, raised: str, limits: Limits) -> int | None:
    """The bytes of the limit that alone ended the trial; None where the memory itself was too small, nothing tells
    which of both it was, or something else ended it.

    ``reason`` is the outcome's, ``raised`` the text of the exception that left the script, "" without one.
    """
    if reason == HOST_OOM and ended_by is EndedBy.HOST_OOM:
        return limits.max_host_bytes
    said = _SAID_BY_TORCH.search(raised) if reason == DEVICE_OOM else None
    if said is None:
        return None
    wanted, free = (float(said[place]) * 1024 ** _UNITS[said[place + 1]] for place in (1, 3))
    return limits.max_device_bytes if wanted <= free else None
