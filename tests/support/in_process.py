"""A trial in the tests' own process: nothing of it ends that process, and its records are kept."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tuner.child import shape, wire
from tuner.child.recorder import Recorder
from tuner.child.records import Record
from tuner.child.session import Session
from tuner.child.user_modules import UserModules

ENDLESS: dict[str, float] = {
    "warmup_steps": 1, "warmup_s": 0.0, "block_s": 0.001, "min_blocks": 10**9, "min_s": 1e9, "max_s": 1e9,
    "target_half_width": 0.0,
}  # fmt: skip


class NoModules(UserModules):
    """None of the user's: a process of tests has imported a thousand files of tests, which are no script's.

    To look at them took a seventh of the time of all tests of loops of PyTorch in this process.
    """

    def begin(self) -> None:
        pass

    def hashes(self) -> dict[str, str]:
        return {}


def session_of(request: dict[str, Any], recorder: Recorder) -> Session:
    """A session whose request has these fields, as they would lie in the request's file."""
    session = Session(wire.decode_request(json.dumps(request)), recorder)
    session._modules = NoModules("")
    return session


class Log(Recorder):
    """Keeps records instead of sending them."""

    def __init__(self) -> None:
        super().__init__(None)
        self.records: list[dict[str, Any]] = []

    def emit(self, record: Record) -> None:
        fields = {field.name: shape.plain(getattr(record, field.name)) for field in dataclasses.fields(record)}
        self.records.append({"kind": record.kind, **fields})

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Records of one kind."""
        return [record for record in self.records if record["kind"] == kind]


class InProcess:
    """A session and its records; who inherits installs the watches."""

    def __init__(self, config: dict[str, Any], knowledge: dict[str, Any], **request: Any) -> None:
        self.log = Log()
        given = {"config": config, "knowledge": knowledge, "window": ENDLESS, "device": "cpu", "folder": ""}
        request["probe"] = request.get("probe") or None
        self.session = session_of({**given, **request}, self.log)

    def end(self) -> dict[str, Any]:
        """The facts record."""
        self.session.finish(complete=False)
        return self.log.of("facts")[0]

    def evidence(self, knob: str) -> tuple[str, str]:
        """What was found of a knob at last, and why."""
        record = [r for r in self.log.of("knob") if r["knob"] == knob][-1]
        return record["evidence"], record["reason"]

    @property
    def steps(self) -> int:
        """Steps that were counted."""
        return self.session.clock.total_steps

    @property
    def samples(self) -> float:
        """Samples that were trained on; the open block's included, once ended."""
        return self.session.clock.total_samples

    def set_apart(self) -> int:
        """Blocks that aren't training."""
        return sum(block["flagged"] for block in self.log.of("block"))
