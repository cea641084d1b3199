"""What this machine's processor can do, where an expectation goes by it."""

from __future__ import annotations

from pathlib import Path


def flags() -> frozenset[str]:
    """The kernel's names of its features; none where it doesn't tell."""
    try:
        return frozenset(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split())
    except OSError:
        return frozenset()


WIDE = "avx512f" in flags()
"""Whether it has AVX-512. Without it bf16 is emulated, many times as slow as float32, and TensorFlow rewrites no graph
to it."""
