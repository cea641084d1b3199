"""Which library this process takes its memory from: the one that ``malloc`` lies in."""

from __future__ import annotations

import ctypes
import os

from .evidence import Finding
from .knobs import Knobs
from .records import Evidence

KNOB = "allocator"
SYSTEM = "system"
NAMES = ("jemalloc", "tcmalloc", "mimalloc")
_OF_THE_SYSTEM = ("libc.so", "libc-", "ld-musl", "libc.musl")
NOT_LOADED = "the process began without it: it isn't installed here, or something took it out of LD_PRELOAD"


def in_use() -> str:
    """The allocator's name, "system" for the C library's own, else its library's file name; "" where nothing tells."""
    try:
        address = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value or 0
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                parts = line.split(maxsplit=5)
                first, last = (int(end, 16) for end in parts[0].split("-"))
                if first <= address < last:
                    return _name_of(parts[5].strip()) if len(parts) > 5 else ""
    except (OSError, AttributeError, ValueError):
        pass  # no such system
    return ""


def _name_of(path: str) -> str:
    file = os.path.basename(path)
    known = next((name for name in NAMES if name in file), "")
    return known or (SYSTEM if file.startswith(_OF_THE_SYSTEM) else file)


def report(knobs: Knobs) -> None:
    """Evidence, where the config asks for an allocator."""
    if KNOB not in knobs.requested:
        return
    seen = in_use()
    if seen:
        knobs.compare(KNOB, seen, why=f"{seen} is in use: {NOT_LOADED}")
    else:
        knobs.report(KNOB, Finding(Evidence.UNVERIFIABLE, "nothing shows which allocator is in use"))
