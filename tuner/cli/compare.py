"""``autotune compare``: what studies found on several devices, side by side."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import replace

from tuner.analysis.fleet import OnDevice, compare
from tuner.cli.best_json import content_of, file_of, shown_name
from tuner.cli.prices import Prices, find_prices
from tuner.cli.printable import printable
from tuner.cli.tables import show
from tuner.cli.verb import Subparsers
from tuner.documents import comparison_document
from tuner.errors import ExitCode, ProfileError
from tuner.export.figures import read
from tuner.report.compared import conclusions, headings, table

TAKES_SCRIPT_ARGUMENTS = False


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "compare", help="lay the devices of one or several best.json side by side",
        usage="autotune compare best.json [best.json ...] [--prices FILE] [--json]",
        description="Lays what studies found on several devices side by side: speed, memory, and energy and price where"
        " they are known. Devices are ranked only where that follows from the runs.",
    )  # fmt: skip
    parser.add_argument("files", nargs="+", metavar="best.json", help="a best.json, or the folder of its study")
    parser.add_argument(
        "--prices", metavar="FILE",
        help='a TOML file with a table [prices] of your own, in currency per hour: "NVIDIA H200" = 3.2'
        " (default: that of ./study.toml, if it has one)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the comparison."""
    prices = find_prices(arguments.prices)
    places = list(dict.fromkeys(map(file_of, arguments.files)))
    profiles = [_named(profile) for place in places for profile in read(content_of(place), place)]
    if not profiles:
        raise ProfileError(f"no profile in {', '.join(places)}", hint="autotune study writes one for its device")
    found = {number: prices.of(*_names(profile)) for number, profile in enumerate(profiles)}
    comparison = compare(profiles, {number: price for number, price in found.items() if price is not None})
    if arguments.json:
        print(json.dumps(comparison_document(comparison), indent=2))
        return ExitCode.OK
    _say(headings(comparison))
    print()
    show(table(comparison))
    unpriced = {number: _why_unpriced(profiles[number], prices) for number, price in found.items() if price is None}
    lines = conclusions(comparison, unpriced if prices.per_hour else {})
    if not prices.per_hour:
        where = f"the table of {prices.file} is empty" if prices.file else "--prices FILE names a table of yours"
        lines.append(f"no prices are known: {where}")
    print()
    _say(lines)
    return ExitCode.OK


def _say(lines: Iterable[str]) -> None:
    print("\n".join(map(printable, lines)))


def _named(profile: OnDevice) -> OnDevice:
    """The profile with the name that its device is shown by."""
    return replace(profile, shown=shown_name(profile.device, profile.circumstances.cores))


def _names(profile: OnDevice) -> tuple[str, ...]:
    """What a price may stand under: a processor's with its cores goes before its model's alone."""
    return (profile.shown, profile.device.name)


def _why_unpriced(profile: OnDevice, prices: Prices) -> str:
    meant = prices.meant(*_names(profile), profile.device.kind)
    return f"{prices.file} has none for {profile.shown!r}" + (f"; is its {meant!r} meant for it?" if meant else "")
