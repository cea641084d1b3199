"""The script's own command-line options: seen through argparse, and set there where a knob is bound to one."""

from __future__ import annotations

import argparse
from typing import Any

from .patches import patch
from .session import Session

# The names that public training scripts give to these knobs.
NAMES = {
    "batch_size": ("batch_size", "batch", "bs", "b", "batchsize", "train_batch_size", "per_device_train_batch_size"),
    "num_workers": ("num_workers", "workers", "nworkers", "n_workers", "dataloader_num_workers", "j"),
    "grad_accumulation": ("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum", "accum_iter"),
}


def install(session: Session) -> None:
    """Watches argparse; sets the options that the baseline found to be a knob's own."""
    bound: dict[str, str] = {
        knob: dest for knob, dest in (session.knowledge.get("options") or {}).items() if knob in session.config
    }
    seen: dict[str, dict[str, Any]] = {}

    def make(original: Any) -> Any:
        def parse_known_args(parser: Any, args: Any = None, namespace: Any = None) -> Any:
            parsed, rest = original(parser, args, namespace)
            destinations = {action.dest for action in parser._actions}
            for knob, dest in bound.items():
                if dest in destinations and hasattr(parsed, dest):
                    setattr(parsed, dest, session.config[knob])
            for action in parser._actions:
                if action.option_strings and hasattr(parsed, action.dest):
                    value = getattr(parsed, action.dest)
                    if isinstance(value, (bool, int, float, str)):
                        seen[action.dest] = {"flag": action.option_strings[-1], "value": value}
            return parsed, rest

        return parse_known_args

    if session.measuring or bound:
        patch(argparse.ArgumentParser, "parse_known_args", make)
    for knob in bound:
        session.knobs.delegate(knob)
    session.option = lambda knob: _value(seen, knob)
    session.read_options = lambda: _report(session, seen)


def _is_named(dest: str, knob: str) -> bool:
    plain, names = dest.lower().replace("-", "_"), (knob, *NAMES.get(knob, ()))
    return plain in names or plain.replace("_", "") in {name.replace("_", "") for name in names}


def _value(seen: dict[str, dict[str, Any]], knob: str) -> Any:
    """What argparse holds for the option of the knob's name, None where it knows of none."""
    return next((option["value"] for dest, option in seen.items() if _is_named(dest, knob)), None)


def _report(session: Session, seen: dict[str, dict[str, Any]]) -> None:
    """A knob has an option where one of its usual names holds the value that was observed in the loader."""
    found: dict[str, str] = {}
    for knob in NAMES:
        written = session.as_written.get(knob)
        for dest, option in seen.items():
            if _is_named(dest, knob) and type(option["value"]) is int and option["value"] == written:
                found[knob] = dest
    for knob in {"batch_size", "grad_accumulation"} & set(found):
        session.left_out.pop(knob, None)  # what the patches can't do the script can
    session.facts["options"] = found
    values = {knob: _value(seen, knob) for knob in session.knowledge.get("placeholders") or ()}
    session.facts["arguments"] = {knob: value for knob, value in values.items() if value is not None}
    for knob in values.keys() & session.config.keys() - session.knobs.reported:
        _report_argument(session, knob, values[knob])
    session.facts["option_flags"] = {knob: seen[dest]["flag"] for knob, dest in found.items()}


def _report_argument(session: Session, knob: str, parsed: Any) -> None:
    """An argument of the script's own that no adapter knows: that the parser took it is all that can be seen."""
    if str(parsed).lower() == str(session.config[knob]).lower():
        session.knob(knob, "verified", observed=parsed)
    else:
        session.knob(knob, "unverifiable", changed=0, reason="the script's argument parser doesn't show it")
