"""What computing on the machine's processors can be given, for every framework's space."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.model import Value
from tuner.space import Known


def threads(known: Known) -> Sequence[Value]:
    """Numbers of threads worth trying: one, half of the cores, all but one, all."""
    return sorted({1, max(1, known.cores // 2), max(1, known.cores - 1), known.cores})
