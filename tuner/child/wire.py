"""The protocol between parent and child: one JSON request in, versioned JSON lines out.

Every record is an object on a line of its own with ``v`` (the protocol's version), ``t`` (the child's
monotonic clock in seconds) and ``kind``. A reader skips kinds that it doesn't know and a torn last line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

VERSION = 1

REQUEST_ENV = "AUTOTUNE_REQUEST"
"""Environment variable: path of the request's JSON file."""

RECORDS_ENV = "AUTOTUNE_RECORDS_FD"
"""Environment variable: number of the inherited descriptor that records are written to."""

FILES = "files"
"""In the trial's folder: the trial's versions of the user's files, and what it would have left among them."""

MADE = "made.jsonl"
"""In the trial's folder: what the trial makes among the user's files, a line each; see ``leavings``."""

KINDS = frozenset(
    {
        "hello",  # python, pid, argv as the script sees it
        "framework",  # name, version, device: one that was imported; which one trains is among the facts
        "facts",  # what the script wrote: the baseline's value of every knob, sites, options
        "first_step",  # seconds since the child started
        "compile",  # graphs, seconds
        "block",  # phase ("warmup" | "window"), steps, samples, seconds, wait_s, flagged
        "loss",  # samples so far, value
        "metric",  # name, value: from tuner.report, or the last that a logger or a trainer was given
        "gradient",  # norm, samples, exact, random, inputs: what a screen's first step was taken on
        "memory",  # device figures in bytes
        "knob",  # one KnobReport
        "note",  # a line for people: what was diverted, what was left out
        "failure",  # reason, detail: a config that can't work, recognised in the child
        "window",  # complete: bool, why it ended, samples, seconds
        "exception",  # type, text, traceback of the user's script
        "exit",  # code: how the script ended
    }
)


def encode(kind: str, t: float, fields: Mapping[str, Any]) -> bytes:
    """One record as a line. Raises ``ValueError`` for an unknown kind, never for odd floats."""
    if kind not in KINDS:
        raise ValueError(f"unknown record kind {kind!r}")
    record = {"v": VERSION, "t": round(t, 6), "kind": kind, **{k: _plain(v) for k, v in fields.items()}}
    return json.dumps(record, separators=(",", ":"), allow_nan=False, default=str).encode() + b"\n"


def decode(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Records of the lines; torn, foreign and future lines are skipped."""
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("v") == VERSION and record.get("kind") in KINDS:
            yield record


def _plain(value: Any) -> Any:
    """JSON has no NaN or infinity: they travel as strings, which ``float`` reads back."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    return value
