"""``autotune devices``: what a study could run on here, what each device can do, and what is missing."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from tuner.analysis.resources import DEVICE
from tuner.cli.tables import show
from tuner.cli.verb import Subparsers
from tuner.devices.abilities import Ability, Missing, abilities, missing
from tuner.errors import ExitCode
from tuner.formatting import bytes_text
from tuner.report.table import Table

TAKES_SCRIPT_ARGUMENTS = False


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "devices", help="list the devices of this machine, and what is missing", usage="autotune devices [--json]",
        description="Lists the devices that a study could run on, in the order in which --device auto picks them, with"
        " the frameworks that compute on each; and what is missing, with the command that mends it.",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the devices."""
    found = abilities()
    lacks = missing(found)
    if arguments.json:
        document = {"devices": [_plain(each) for each in found], "missing": [_lack(each) for each in lacks]}
        print(json.dumps(document, indent=2))
        return ExitCode.OK
    show(Table(["device", "name", "memory", "identity", "frameworks"], [_row(ability) for ability in found]))
    reasons = {f"{part}: {why}": None for each in found for part, why in _unknown(each).items()}
    for heading, lines in (
        ("energy isn't counted", list(reasons)),
        ("missing", [f"{each.kind}: {each.lack.text}" for each in lacks]),
    ):
        if lines:
            print(f"\n{heading}")
            print("\n".join(f"  {line}" for line in lines))
    return ExitCode.OK


def _row(ability: Ability) -> list[str]:
    device = ability.device
    memory = bytes_text(device.memory_bytes) if device.memory_bytes else ""
    frameworks = ", ".join(framework.text for framework in ability.frameworks) or "none can use it"
    return [device.label, device.name, memory, device.uuid, frameworks]


def _unknown(ability: Ability) -> dict[str, str]:
    """Why no energy is counted: of the host, which all devices have in common, and of a device by its label."""
    return {ability.device.label if part == DEVICE else part: why for part, why in ability.energy_unknown.items()}


def _plain(ability: Ability) -> dict[str, Any]:
    fields = asdict(ability.device)
    return {
        "device": fields.pop("label"), **fields,
        "frameworks": {framework.name: framework.version for framework in ability.frameworks},
        "energy_unknown": dict(ability.energy_unknown),
    }  # fmt: skip


def _lack(each: Missing) -> dict[str, str]:
    return {"kind": each.kind, "why": each.lack.why, "command": each.lack.command}
