"""Threads of this process by the names that their libraries give them."""

from __future__ import annotations

import os


def count_of(beginning: str) -> int:
    """How many have a name that begins so; 0 where none does, or names can't be seen. Linux keeps 15 characters."""
    found = 0
    try:
        tasks = os.listdir("/proc/self/task")
    except OSError:
        return 0
    for task in tasks:
        try:
            with open(f"/proc/self/task/{task}/comm", encoding="ascii", errors="replace") as file:
                found += file.read().startswith(beginning)
        except OSError:
            pass  # it ended meanwhile
    return found
