"""``autotune study``: searches, proves and exports the fastest config of a script on a device."""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

from rich.console import Console

from tuner import environment
from tuner.cli.settings import Settings, gather
from tuner.cli.signals import stopping_on_signals
from tuner.cli.tables import Subparsers
from tuner.cli.target import find_script, stem
from tuner.errors import ExitCode


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "study", help="find the fastest config of a script",
        usage="autotune study [SCRIPT | --module NAME | DIR] [options] [-- the script's own arguments]",
        description="Searches the fastest config of a training script on one device, proves it against the script as"
        " written, and writes best.json. The same command again resumes. Without SCRIPT, or with a folder, the"
        " study.toml there says what to do; one beside SCRIPT gives defaults, which the command line overrides.",
    )  # fmt: skip
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="the training script, or a folder with a study.toml")
    parser.add_argument("-m", "--module", metavar="NAME", help="a module instead of a script, as python -m runs it")
    parser.add_argument("--device", help="auto (default), cpu, cuda, cuda:1 or tpu")
    parser.add_argument("--trials", metavar="N", help="configs to try before the finals at most (default 30)")
    parser.add_argument("--budget", metavar="TIME", help="time for the whole study, such as 90s, 30m, 1h30m (default 30m)")
    parser.add_argument("--study", metavar="DIR", help="the study's folder (default ./autotune-SCRIPT-DEVICE)")
    parser.add_argument("--knobs", metavar="A,B,-C", help="only these knobs; with a minus: all but these")
    parser.add_argument("--set", action="append", metavar="KNOB=VALUE", help="pin a knob; may be repeated")
    parser.add_argument(
        "--max-memory", metavar="SIZE", help="limit of the device's memory: 20GiB, or a share of all (default 0.9)"
    )
    parser.add_argument("--trial-timeout", metavar="TIME", help="time for one trial (default 2m)")
    parser.add_argument("--space", metavar="NAME|FILE", help="search space (default torch)")
    parser.add_argument("--objective", metavar="NAME|FILE", help="what is bought (default throughput)")
    parser.add_argument("--seed", metavar="S", help="seed of the search (default 0)")
    parser.add_argument("--new", action="store_true", help="begin anew: the folder's earlier study is set aside")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and create nothing")
    parser.set_defaults(run=run)
