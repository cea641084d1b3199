"""Failures of a script that come of what surrounds it in a trial, and what mends each: told by the libraries' texts.

Nobody is to blame for these, so that nothing has to be tried to find out whose fault they are.
"""

from __future__ import annotations

import re

from tuner.devices.present import kind_of
from tuner.errors import UserScriptError
from tuner.model import Device, Outcome

_LAUNCHER = re.compile(
    r"KeyError: '(?:RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'"
    r"|environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set"
)
_CARD = re.compile(
    r"invalid device ordinal|[Ii]nvalid device id|device_count\(\) is 1\b|device=\d+, num_gpus=|num_gpus=1\b"
    r"|No CUDA GPUs are available|Found no NVIDIA driver|Torch not compiled with CUDA|no CUDA-capable device"
    r"|/device:GPU:\d+ unknown device|Could not satisfy (?:explicit )?device specification '[^']*GPU"
)
_KIND = r"(?:TPU|GPU|CUDA|accelerator)s?"
_ELSEWHERE = re.compile(
    rf"\bonly (?:{_KIND}(?:,|,? or|,? and|/)? ?)+(?:(?:is|are) )?(?:currently )?supported"
    rf"|\b(?:requires?|needs?) (?:an? |at least one |one )?(?:\w+[ -](?:capable |enabled )?)?{_KIND}\b"
    rf"|\b{_KIND}(?: device)? (?:is|are) required|(?:not|n't) (?:be )?(?:supported|run) on (?:the |a )?CPU\b"
    r"|\bCPU(?: training)? (?:is|are) not supported|\bdoes not support (?:the )?CPU\b",
    re.IGNORECASE,
)
"""What scripts say of themselves as they end, where they look for their device."""
_ANSWER = re.compile(r"EOFError: EOF when reading a line")
_TERMINAL = re.compile(r"\bstty\b|\btermios\.error\b|Inappropriate ioctl for device|\b_curses\.error\b")
"""Of scripts that ask how wide the terminal is, often for a progress bar."""
_TRACKER = re.compile(r'^  File "[^"\n]*/(wandb|comet_ml|neptune|swanlab|clearml|mlflow)/', re.MULTILINE)
_IMPORT = re.compile(r"(?:ModuleNotFoundError|ImportError):")


def is_import_error(failed: Outcome) -> bool:
    """Whether an import ended it. What lacks a library, or has another version of it, does so switched off or on."""
    return _IMPORT.match(failed.detail) is not None


def surroundings_error(outcome: Outcome, device: Device) -> UserScriptError | None:
    """The error for a failure that a trial's surroundings explain; None for any other."""
    text, detail = outcome.traceback_text, outcome.detail
    on_host = kind_of(device).is_host
    if _LAUNCHER.search(text):
        message = f"the script expects the environment of a launcher such as torchrun: {detail}"
        hint = (
            "set it for one process, as in: RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
            " autotune study train.py; or study it in several, as torchrun starts them: --ranks 2"
        )
    elif _CARD.search(text) and on_host:
        message = f"the script asks for a card, and a study on {device.label} shows it none: {detail}"
        hint = "study it with --device cuda, or give the script the argument with which it trains on the CPU"
    elif _CARD.search(text):
        message = f"the script asks for another card than the one that a trial shows it: {detail}"
        hint = (
            "a trial sees one card, under the number 0: leave out the script's own choice, such as --gpu 3, and write"
            " --device cuda:3 instead"
        )
    elif on_host and _ELSEWHERE.search(detail):
        message = f"the script can't run on {device.label}, by its own word: {detail}"
        hint = (
            "study it with --device cuda or --device tpu, where there is one, or give it the argument with which it"
            " trains here"
        )
    elif _ANSWER.search(text):
        message = "the script asks for an answer on standard input, which is empty in a trial"
        hint = "give the answer as an argument of the script"
    elif _TERMINAL.search(text):
        message = f"the script asks for a terminal, and a trial has none, as a batch job hasn't: {detail}"
        hint = (
            "python SCRIPT < /dev/null > out.txt shows the same; shutil.get_terminal_size() gives a width with a"
            " terminal and without"
        )
    elif (tracker := _TRACKER.search(text)) and not is_import_error(outcome):
        message = f"the script fails in {tracker[1]}, which is switched off in trials: {detail}"
        hint = f"leave {tracker[1]} out by an argument of the script: trials are no experiments of yours"
    else:
        return None
    return UserScriptError(message, hint=hint, traceback_text=text)
