"""The host's processor. It works at once: nothing is waited for, and its memory is the process's own.

fp16 isn't offered: it is emulated there, and a convolution was seen to take 60 times as long.
"""

from __future__ import annotations

from .base import Device


class CpuDevice(Device):
    """Also stands in for a kind of device that nobody knows."""

    kind = "cpu"
    torch_type = "cpu"
    xla_runs_in_threads = True
