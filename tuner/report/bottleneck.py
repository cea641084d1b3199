"""A bottleneck in words."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.analysis.bottleneck import Bottleneck
from tuner.formatting import bound_text, bytes_text, gain_text, share_text


def bottleneck_lines(
    found: Bottleneck, headroom_bytes: int | None, knobs: Sequence[str], asides: Sequence[str], records: str
) -> list[str]:
    """What holds the loop up, by how much, what to turn, and what else there is to say."""
    lines = ["", bound_text(found)]
    if found.wait_share is not None:
        lines.append(f"waiting for the loader: {share_text(found.wait_share)} of the time")
    if found.most_from_input is not None:
        lines.append(f"a perfect loader would bring {gain_text(found.most_from_input)} the speed")
    if found.compute is not None and found.loader is not None:
        lines.append(f"the loader alone is {gain_text(found.loader / found.compute)} as fast as computing alone")
    if found.overhead_share is not None:
        lines.append(f"of a step, {share_text(found.overhead_share)} doesn't grow with the batch")
    if headroom_bytes is not None:
        lines.append(f"memory left below the limit: {bytes_text(max(0, headroom_bytes))}")
    lines.append(f"worth turning: {', '.join(knobs) or 'nothing that can be turned here'}")
    return [*lines, *asides, f"records: {records}"]
