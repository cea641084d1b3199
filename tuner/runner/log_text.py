"""What a script printed or raised, as text: its last traceback, its last line, a line for people. Pure."""

from __future__ import annotations

import re

DETAIL_LENGTH = 300
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = '  File "'


_RANK = re.compile(r"^\[rank\d+\]: ", re.MULTILINE)
"""Of each line of a traceback, once ``torch.distributed.init_process_group`` was called."""


def traceback_in(log: str) -> str:
    """The last traceback that Python printed into a log, with what follows it; "" where there is none."""
    log = _RANK.sub("", log)
    at = log.rfind(f"\n{_TRACEBACK}")
    if at >= 0 or log.startswith(_TRACEBACK):
        return log[at + 1 :]
    # A script that can't be compiled has no frames to be called from.
    at = log.rfind(f"\n{_FRAME}")
    return log[at + 1 :] if at >= 0 or log.startswith(_FRAME) else ""


def is_frame(line: str) -> bool:
    """Whether the line of a traceback begins a frame: it names its file."""
    return line.startswith(_FRAME)


def frames_in(traceback_text: str) -> list[str]:
    """The lines of a traceback that begin a frame, the innermost last."""
    return [line for line in traceback_text.splitlines() if is_frame(line)]


def without_frames(traceback_text: str) -> str:
    """What a traceback says beside its frames and the source lines that it quotes, which may speak of anything."""
    said, is_source = [], False
    for line in traceback_text.splitlines():
        is_source = is_frame(line) or (is_source and line.startswith("    "))
        if not is_source:
            said.append(line)
    return "\n".join(said)


def raised_line(traceback_text: str) -> str:
    """What a traceback says was raised, its first line where it has several; "" where there is no traceback."""
    lines = traceback_text.splitlines()
    frames = [number for number, line in enumerate(lines) if is_frame(line)]
    following = lines[frames[-1] + 1 :] if frames else []
    return next((line for line in following if line and not line[0].isspace()), "")


def last_line(text: str) -> str:
    """The last line that isn't blank."""
    for line in reversed(text.splitlines()):
        if line.strip():
            return line.strip()
    return ""


_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def one_line(text: str) -> str:
    """The text on one line of bearable length, without a terminal's colours."""
    joined = " ".join(_COLOURS.sub("", text).split())
    return joined if len(joined) <= DETAIL_LENGTH else joined[: DETAIL_LENGTH - 1] + "…"
