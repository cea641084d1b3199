"""The command line with short windows, and three rounds of finals at first: ``python short_study.py study train.py``.

All else is the command's own. For tests of what a study makes of a script, and of what comes of it: how long it
measures as a user calls it is shown by the campaigns, which are marked slow.

Beside other tests every trial is disturbed, and none is measured again for that: it would be as disturbed then.
"""

from __future__ import annotations

import os
from dataclasses import replace

from tuner.child.records import Window
from tuner.cli import main, study, verify
from tuner.cli.planning import make_plan
from tuner.cli.settings import Settings
from tuner.study import execution
from tuner.study.budget import FEWEST_ROUNDS
from tuner.study.plan import StudyPlan

SHORT = Window(warmup_s=0.25, min_blocks=6, min_s=1.5, max_s=6.0)


def short_plan(settings: Settings) -> StudyPlan:
    """The plan of the settings, with these windows."""
    return replace(make_plan(settings), window=SHORT, finals_rounds=FEWEST_ROUNDS)


if __name__ == "__main__":
    for verb in (study, verify):
        verb.make_plan = short_plan  # type: ignore[attr-defined]  # the verb imports it by name
    if "PYTEST_XDIST_WORKER" in os.environ:
        execution.REPEATS = 0
    raise SystemExit(main())
