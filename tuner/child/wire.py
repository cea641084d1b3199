"""The protocol between parent and child: one JSON request in, versioned JSON lines out.

Every record is an object on a line of its own with ``v`` (the protocol's version), ``t`` (the child's monotonic clock
in seconds), ``kind``, and the fields of the record's type in ``records``. A reader skips kinds that it doesn't know and
a torn last line.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from . import shape
from .records import RECORDS, ChildRequest, Note, Record

VERSION = 1

REQUEST_ENV = "AUTOTUNE_REQUEST"
"""Environment variable: path of the request's JSON file."""
DESCRIPTORS = "/proc/self/fd/"
"""A request that lies in memory is named by this and the number of its descriptor, which the child closes."""

RECORDS_ENV = "AUTOTUNE_RECORDS_FD"
"""Environment variable: number of the inherited descriptor that records are written to."""

TURNS_ENV = "AUTOTUNE_TURNS_FD"
"""Environment variable: number of the inherited descriptor that turns are read from; see ``turns``."""

SERVER_ENV = "AUTOTUNE_SERVER_FD"
"""Environment variable: number of the inherited socket that a fork server is told by; see ``fork_server``."""

RANKS_ENV = "AUTOTUNE_RANKS_FD"
"""Environment variable: number of the inherited descriptor of what the ranks of a trial share; see ``unison``."""

WHERE_SIGNAL = int(signal.SIGRTMAX) - 3
"""Asks a trial that is about to be ended where its script is: its process writes that into its log."""

PRELOADED_ENV = "AUTOTUNE_PRELOADED"
"""Environment variable: the library that the parent added at the end of ``LD_PRELOAD``; see ``preloading``."""

FILES = "files"
"""In the trial's folder: the trial's versions of the user's files, and what it would have left among them."""

MADE = "made.jsonl"
"""In the trial's folder: what the trial makes among the user's files, a line each; see ``created_files``."""

KEPT = "kept.jsonl"
"""In the trial's folder: paths of the user's that the script would have changed or removed, a JSON string a line."""

CACHES = (
    "XDG_CACHE_HOME", "PYTHONPYCACHEPREFIX", "PIP_CACHE_DIR", "UV_CACHE_DIR", "CCACHE_DIR",
    "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_ASSETS_CACHE", "HF_MODULES_CACHE", "HF_XET_CACHE",
    "HUGGINGFACE_HUB_CACHE", "HUGGINGFACE_ASSETS_CACHE", "TRANSFORMERS_CACHE", "PYTORCH_TRANSFORMERS_CACHE",
    "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "KERAS_HOME",
    "TFHUB_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR", "NUMBA_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH",
    "MIOPEN_CUSTOM_CACHE_DIR", "VLLM_CACHE_ROOT", "MODELSCOPE_CACHE", "WANDB_CACHE_DIR", "TIKTOKEN_CACHE_DIR",
)  # fmt: skip
"""Environment variables that name the cache of a library. One of the user's own making may name anything."""

UNREADABLE = "a record can't be read:"
"""Begins the note that stands in for a record which isn't as declared."""


@dataclass(frozen=True)
class Entry:
    """A record, and when the child sent it: ``t`` is its monotonic clock in seconds. ``rank``: which of several."""

    t: float
    record: Record
    rank: int = 0


def encode(record: Record, t: float, rank: int = 0) -> bytes:
    """One record as a line."""
    line = {"v": VERSION, "t": round(t, 6), "kind": record.kind, **shape.plain(record)}
    line |= {"rank": rank} if rank else {}
    return json.dumps(line, separators=(",", ":"), allow_nan=False, default=str).encode() + b"\n"


def decode(lines: Iterable[bytes]) -> Iterator[Entry]:
    """Records of the lines; torn, foreign and future lines are skipped. One of ours that isn't as declared is noted."""
    for line in lines:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(fields, dict) or fields.get("v") != VERSION:
            continue
        kind = RECORDS.get(str(fields.get("kind")))
        try:
            t = shape.read(float, fields.get("t"), "t")
            rank = shape.read(int, fields.get("rank", 0), "rank")
        except ValueError:
            continue
        if kind is None or not math.isfinite(t):
            continue
        try:
            record: Record = shape.read(kind, fields)
        except ValueError as error:
            record = Note(f"{UNREADABLE} {error}")
        yield Entry(t, record, rank)


def encode_request(request: ChildRequest) -> str:
    """The request as the text of its file."""
    return json.dumps({"v": VERSION, **shape.plain(request)}, indent=1, allow_nan=False, default=str)


def decode_request(text: str) -> ChildRequest:
    """The inverse of ``encode_request``. Raises ``ValueError`` naming what isn't as declared."""
    return shape.read(ChildRequest, json.loads(text), "request")
