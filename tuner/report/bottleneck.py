"""What a probe found: in words, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tuner.analysis.bottleneck import Bottleneck
from tuner.documents import measurement_document, plain
from tuner.formatting import AS_WRITTEN, bound_text, bytes_text, disturbed_text, gain_text, share_text
from tuner.model import LeftOut, Measurement

_NOT_TOLD = frozenset({"on_host", "hides_its_wait", "most_input_share"})
"""Of a bottleneck, in the JSON: conclusions of ours from what is told."""


@dataclass(frozen=True)
class ProbeReport:
    """``runs`` are the loop and its sides as measured, name → measurement; None where a run gave no figure.

    ``headroom_bytes`` is what the memory limit leaves, None without a limit; ``knobs`` may widen the bottleneck;
    ``left_out`` says of knobs why they can't be turned here; ``records`` is the folder of the raw records.
    """

    bottleneck: Bottleneck
    runs: Mapping[str, Measurement | None]
    headroom_bytes: int | None
    knobs: Sequence[str]
    remarks: Sequence[str]
    left_out: Mapping[str, LeftOut]
    records: str

    def lines(self) -> list[str]:
        """What holds the loop up, by how much, what to turn, and what else there is to say."""
        bottleneck = self.bottleneck
        lines = ["", bound_text(bottleneck)]
        lines += [disturbed_text(bottleneck)] if bottleneck.disturbed else []
        if bottleneck.wait_share is not None:
            lines.append(f"waiting for data: {share_text(bottleneck.wait_share)} of the time")
        if bottleneck.most_from_input is not None:
            lines.append(f"a perfect loader would give {gain_text(bottleneck.most_from_input)} the speed")
        if bottleneck.compute is not None and bottleneck.loader is not None:
            ratio = gain_text(bottleneck.loader / bottleneck.compute)
            lines.append(f"the loader alone runs at {ratio} the rate of computing alone")
        if bottleneck.overhead_share is not None:
            lines.append(f"{share_text(bottleneck.overhead_share)} of a step doesn't grow with the batch size")
        if self.headroom_bytes is not None:
            lines.append(f"memory left under the limit: {bytes_text(max(0, self.headroom_bytes))}")
        lines.append(f"worth tuning: {', '.join(self.knobs) or 'none of the knobs here'}")
        lines += [f"{AS_WRITTEN}: {remark}" for remark in self.remarks]
        lines += [f"left out: {knob}: {left.reason}" for knob, left in self.left_out.items()]
        return [*lines, f"records: {self.records}"]

    def document(self) -> dict[str, Any]:
        """The same for programs. ``real``, ``compute`` and ``loader`` are in ``unit`` per second."""
        told = {key: value for key, value in asdict(self.bottleneck).items() if key not in _NOT_TOLD}
        return {
            **plain(told), "bound": str(self.bottleneck.bound),
            "headroom_bytes": self.headroom_bytes, "knobs": list(self.knobs), "remarks": list(self.remarks),
            "left_out": {knob: left.reason for knob, left in self.left_out.items()}, "records": self.records,
            "runs": [
                {"name": name, "measurement": measurement_document(measurement) if measurement is not None else None}
                for name, measurement in self.runs.items()
            ],
        }  # fmt: skip
