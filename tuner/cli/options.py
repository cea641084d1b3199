"""Options that several verbs take, declared once: they mean the same wherever they stand."""

from __future__ import annotations

import argparse

from tuner.child.watch import Watch
from tuner.cli.trust import declare_trust
from tuner.devices.present import AUTO, spellings


def declare_script(parser: argparse.ArgumentParser, folder: str = "./autotune-SCRIPT-DEVICE") -> None:
    """What is tuned, where, on what and within which limits: for every verb that runs trials of a script.

    ``folder`` is what the study's is called where no other is named.
    """
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="the script, or a folder with a study.toml")
    parser.add_argument("-m", "--module", metavar="NAME", help="a module instead of a script, as with python -m")
    parser.add_argument("--device", help=f"{AUTO} (default), {spellings()}")
    parser.add_argument("--study", metavar="DIR", help=f"the study's folder (default {folder})")
    parser.add_argument("--knobs", metavar="A,B,-C", help="search only these knobs; with a minus: all but these")
    parser.add_argument(
        "--max-memory", metavar="SIZE", help="memory limit of the device: 20GiB, or a share of its memory (default 0.9)"
    )
    parser.add_argument("--trial-timeout", metavar="TIME", help="time limit for one run of the script (default 2m)")
    parser.add_argument(
        "--without", metavar="A,B", help=f"leave these watches out: {', '.join(Watch)} (see tuner/child/README.md)"
    )
    parser.add_argument(
        "--space", metavar="NAME|FILE", help="search space (default: that of the framework that trains)"
    )
    declare_trust(parser, "load the Python files that study.toml names without asking")


def declare_ranks(parser: argparse.ArgumentParser) -> None:
    """In how many processes the script trains."""
    parser.add_argument("--ranks", metavar="N", help="train in N processes on this host, as torchrun does (default 1)")


def declare_profile(parser: argparse.ArgumentParser) -> None:
    """Which profile of which file is applied to what: for every verb that takes a best.json and a script."""
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="the training script (default: the study's)")
    parser.add_argument("-m", "--module", metavar="NAME", help="a module instead of a script")
    parser.add_argument("--config", required=True, metavar="FILE", help="a best.json, or the folder of its study")
    parser.add_argument("--device", default=AUTO, help=f"{AUTO} (default), {spellings()}")
    declare_trust(parser, "let the file choose the script and its arguments without asking")
