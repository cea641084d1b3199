"""Trials in this very process: PyTorch is instrumented, nothing ends, and every patch is put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tuner.child.patches import unpatch_all
from tuner.child.recorder import Recorder
from tuner.child.session import Session

ENDLESS = {
    "warmup_steps": 1, "warmup_s": 0.0, "block_s": 0.001, "min_blocks": 10**9, "min_s": 1e9, "max_s": 1e9,
    "target_half_width": 0.0,
}  # fmt: skip


class Log(Recorder):
    """Keeps records instead of sending them."""

    def __init__(self) -> None:
        super().__init__(None)
        self.records: list[dict[str, Any]] = []

    def emit(self, kind: str, **fields: Any) -> None:
        self.records.append({"kind": kind, **fields})

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Records of one kind."""
        return [record for record in self.records if record["kind"] == kind]


class Trial:
    """A session, its adapter and its records, none of which ends this process."""

    def __init__(self, config: dict[str, Any], knowledge: dict[str, Any]) -> None:
        self.log = Log()
        request = {"config": config, "knowledge": knowledge, "window": ENDLESS, "device": "cpu", "folder": ""}
        self.session = Session(request, self.log)
        import torch

        from tuner.child.torch_adapter import TorchAdapter

        self.adapter = TorchAdapter(self.session, torch)
        self.adapter.install()

    def end(self) -> dict[str, Any]:
        """The facts record."""
        self.session.finish(complete=False)
        return self.log.of("facts")[0]

    def evidence(self, knob: str) -> tuple[str, str]:
        """What was found of a knob, and why."""
        record = next(r for r in self.log.of("knob") if r["knob"] == knob)
        return record["evidence"], record["reason"]


@pytest.fixture
def begin() -> Iterator[Callable[..., Trial]]:
    """Begins trials; what they patched is put back, the steps that PyTorch wraps once a class included."""
    import torch

    classes: list[Any] = [torch.optim.SGD, torch.optim.Adadelta, torch.optim.LBFGS]
    steps = [cls.__dict__["step"] for cls in classes]

    def clean() -> None:
        unpatch_all()
        for cls, step in zip(classes, steps, strict=True):
            cls.step = step

    def start(config: dict[str, Any] | None = None, **knowledge: Any) -> Trial:
        clean()
        return Trial(config or {}, knowledge)

    yield start
    clean()
