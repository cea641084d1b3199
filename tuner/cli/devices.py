"""``autotune devices``: what a study could run on here."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from tuner.cli.tables import show
from tuner.cli.verb import Subparsers
from tuner.devices.present import devices
from tuner.errors import ExitCode
from tuner.formatting import bytes_text
from tuner.model import Device
from tuner.report.table import Table

TAKES_SCRIPT_ARGUMENTS = False


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "devices", help="list the devices of this machine", usage="autotune devices [--json]",
        description="Lists the devices that a study could run on, in the order in which --device auto picks them.",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the devices."""
    present = devices()
    if arguments.json:
        print(json.dumps([_plain(device) for device in present], indent=2))
        return ExitCode.OK
    rows = [[d.label, d.name, bytes_text(d.memory_bytes) if d.memory_bytes else "", d.uuid] for d in present]
    show(Table(["device", "name", "memory", "identity"], rows))
    return ExitCode.OK


def _plain(device: Device) -> dict[str, Any]:
    fields = asdict(device)
    return {"device": fields.pop("label"), **fields}
