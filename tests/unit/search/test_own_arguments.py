"""Arguments of the script's own in the walk: nobody knows what they change, and it may be where its data come from."""

from __future__ import annotations

from support import worlds

from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Phase, Side, Trial, Value
from tuner.search.history import History
from tuner.search.structured import StructuredSampler
from tuner.space.declare import Knob, Known, SearchSpace
from tuner.space.resolve import resolve

INPUT = Knob("input", lambda known: ("slow", "fast"), "argument of the script", own=True)
EAGER = Knob("eager", lambda known: (True, False), "Python runs every operation")
READS = Knob(
    "reads", lambda known: (1, 2), "reads at once", loader=True, needs=lambda config: config["input"] == "fast"
)
WRITTEN: dict[str, Value] = {"input": "slow", "eager": True, "reads": 1}


def walked(feeds: dict[str, float], computing: float = 0.0) -> list[Config]:
    """The configs of a walk where the loop computes 120 samples/s eagerly and 1,000 else, from what either input makes.

    The slower side decides. ``computing``: what the script as written computes on one kept batch, 0 where unknown.
    """
    known = Known(worlds.DEVICE, 8, knowledge=Knowledge(as_written=WRITTEN))
    space = resolve(SearchSpace("own", "none", (INPUT, EAGER, READS)), known)
    trials: list[Trial] = []

    def add(phase: Phase, config: Config) -> None:
        given = {**WRITTEN, **config}
        compute, feed = 120.0 if given["eager"] else 1000.0, feeds[str(given["input"])]
        outcome = worlds.measured(min(compute, feed), max(0.0, 1 - feed / compute))
        trials.append(Trial(len(trials), phase, config, "", outcome))

    add(Phase.BASELINE, BASELINE)
    if computing:
        trials.append(Trial(1, Phase.PROBE, BASELINE, "", worlds.measured(computing), side=Side.COMPUTE))
    while (proposal := StructuredSampler().propose(History(space, worlds.OBJECTIVE, trials))) is not None:
        add(Phase.SEARCH, proposal.config)
    return [trial.config for trial in trials if trial.phase is Phase.SEARCH]


def test_what_brought_nothing_is_tried_again_once_the_loop_waits() -> None:
    """As long as steps are eager both inputs are fast enough."""
    tried = walked({"slow": 125.0, "fast": 900.0})
    assert tried[:3] == [Config(input="fast"), Config(eager=False), Config(eager=False, input="fast")]


def test_what_a_kept_batch_saved_is_no_reason_any_more_once_the_data_come_from_elsewhere() -> None:
    """The script as written lost 40% of its time to its loader; the other input is hardly waited for."""
    tried = walked({"slow": 100.0, "fast": 112.0}, computing=167.0)
    assert tried[0] == Config(input="fast")
    assert tried[1] == Config(input="fast", eager=False), "it waits 7% of its time: little beside what it computes"
