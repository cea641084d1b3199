"""A bottleneck in words."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.bottleneck import Bottleneck
from tuner.space import ResolvedSpace
from tuner.wording import AS_WRITTEN, bound_text, bytes_text, gain_text, share_text


def bottleneck_lines(
    found: Bottleneck, headroom_bytes: int | None, knobs: Sequence[str], space: ResolvedSpace, records: str
) -> list[str]:
    """What holds the loop up, by how much, and what to turn."""
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
    lines += [f"{AS_WRITTEN}: {remark}" for remark in space.facts.get("remarks", ())]
    lines.append(f"worth turning: {', '.join(knobs) or 'nothing that can be turned here'}")
    lines += [f"left out: {knob}: {reason}" for knob, reason in space.left_out.items()]
    return [*lines, f"records: {records}"]
