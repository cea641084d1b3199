"""Loops of JAX's that Grain feeds, in a real child: the wait for data, and Grain's knobs.

They run in the environment of `make test-jax`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import grain_scripts
from support.jax_loops import WHOLE, losses

from tuner.child.grain.pipeline import IN_SHARES

pytestmark = pytest.mark.grain
Run = Callable[..., Any]
Write = Callable[..., Path]
KNOWN = {"framework": "jax", "unit": "samples"}


def known_by(ran: Any) -> dict[str, Any]:
    """What a study knows of the script by its first trial."""
    return {**KNOWN, **{name: ran.facts[name] for name in ("training_loaders", "as_written", "loaders")}}


def trained_on(ran: Any) -> int:
    """The script's own count."""
    return int(re.findall(r"^trained on (\d+)$", ran.output, re.MULTILINE)[0])


def notes(ran: Any) -> list[str]:
    """What was said of faults."""
    return [note["text"] for note in ran.of("note")]


def measured(run_child: Run, script: Path, *, workers: int = 0, epochs: int = 3) -> Any:
    """The script as written, to its end: seen to be fed by Grain, and counted as it counts itself."""
    ran = run_child(script, argv=(str(epochs), str(workers)), window=WHOLE)
    assert ran.returncode == 0 and not notes(ran), (ran.output, notes(ran))
    facts = ran.facts
    assert (facts["framework"], facts["fed_by"], facts["unit"]) == ("jax", "Grain loader", "samples"), facts["remarks"]
    assert facts["samples"] == trained_on(ran) > 0
    assert not facts["wait_is_unseen"] and len(facts["batch_waits"]) > 10 and max(facts["batch_waits"]) > 0
    assert facts["as_written"]["num_workers"] == workers
    return ran


KINDS = {
    "a loader": (grain_scripts.LOADER, {"read_threads": 1, "read_buffer": 64}),
    "a dataset": (grain_scripts.DATASET, {"read_threads": 2, "read_buffer": 4}),
    "in epochs": (grain_scripts.IN_EPOCHS, {"read_threads": 1}),
    "batched late": (grain_scripts.BATCHED_LATE, {"read_threads": 0}),
}
VARIANTS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("a dataset", "in epochs", "batched late")]


@pytest.mark.parametrize("kind", ["a loader", *VARIANTS])
def test_workers_and_readers_change_no_batch(kind: str, run_child: Run, write_script: Write) -> None:
    """Grain's own workers would make other batches, each of its share of the samples: no bit of a loss differs."""
    batches, reading = KINDS[kind]
    script = write_script(grain_scripts.script(batches))
    ran = measured(run_child, script)
    assert not {"num_workers", "prefetch_factor", "read_threads", "read_buffer"} & set(ran.facts["left_out"])
    config = {"num_workers": 2, "prefetch_factor": 2, **reading}
    turned = run_child(script, config, knowledge=known_by(ran), argv=("3", "0"), window=WHOLE)
    assert turned.returncode == 0 and not notes(turned), (turned.output, notes(turned))
    assert {knob: turned.evidence(knob) for knob in config} == dict.fromkeys(config, "verified"), turned.of("knob")
    assert losses(turned) == losses(ran) and len(losses(ran)) > 10
    assert "os.fork() was called" not in turned.output


def test_a_loader_with_workers_of_its_own_keeps_their_number(run_child: Run, write_script: Write) -> None:
    """Its batches are made of shares of the samples: another number would make others."""
    ran = measured(run_child, write_script(grain_scripts.script(grain_scripts.LOADER)), workers=2)
    assert ran.facts["left_out"]["num_workers"] == IN_SHARES
    assert ran.facts["as_written"]["prefetch_factor"] == 1 and "prefetch_factor" not in ran.facts["left_out"]


@pytest.mark.slow  # the trial above shows most
def test_workers_of_a_dataset_that_deals_batches_out(run_child: Run, write_script: Write) -> None:
    script = write_script(grain_scripts.script(grain_scripts.WITH_WORKERS))
    ran = measured(run_child, script, workers=2)
    assert "num_workers" not in ran.facts["left_out"]
    config = {"num_workers": 1, "prefetch_factor": 3, "read_threads": 1}
    turned = run_child(script, config, knowledge=known_by(ran), argv=("3", "2"), window=WHOLE)
    assert {knob: turned.evidence(knob) for knob in config} == dict.fromkeys(config, "verified"), turned.of("knob")
    assert losses(turned) == losses(ran)
    none = run_child(script, {"num_workers": 0}, knowledge=known_by(ran), argv=("3", "2"), window=WHOLE)
    assert none.evidence("num_workers") == "verified" and losses(none) == losses(ran)


def test_a_profile_is_applied(run_child: Run, write_script: Write) -> None:
    """What a study knows is made up of the place; flags of absl's that nobody has parsed are none of Grain's matter."""
    text = grain_scripts.script(grain_scripts.DATASET).replace("app.run(main)", "main(sys.argv)")
    script, config = write_script(text), {"num_workers": 2, "prefetch_factor": 2, "read_threads": 1}
    plain = run_child(script, argv=("2", "0"), mode="apply")
    applied = run_child(script, config, knowledge=KNOWN, argv=("2", "0"), mode="apply")
    assert applied.returncode == 0 and losses(applied) == losses(plain), applied.output
    assert "in effect: num_workers, prefetch_factor, read_threads" in applied.output
    assert "NOT in effect" not in applied.output


GUARD = 'if __name__ == "__main__":'
UNGUARDED = "none can be started anew: nothing keeps the training behind if __name__ == \"__main__\""


def test_a_script_that_cant_be_imported_gets_no_workers(run_child: Run, write_script: Write) -> None:
    text = grain_scripts.script(grain_scripts.DATASET).replace(GUARD, "if 1:")
    script = write_script(text)
    ran = measured(run_child, script, epochs=2)
    assert ran.facts["left_out"]["num_workers"] == ran.facts["left_out"]["prefetch_factor"] == UNGUARDED
    applied = run_child(script, {"num_workers": 1}, knowledge=known_by(ran), argv=("2", "0"), mode="apply")
    assert applied.returncode == 0 and losses(applied) == losses(ran), applied.output
    assert f"NOT in effect: num_workers ({UNGUARDED})" in applied.output


# batches ahead

AHEAD = {"device_prefetch": 2}


def wait_s(ran: Any) -> float:
    """Seconds that the loop waited for its data."""
    return sum(float(block["wait_s"]) for block in ran.of("block"))


@pytest.mark.timed
def test_batches_are_put_on_the_device_ahead(run_child: Run, write_script: Write) -> None:
    """No bit of a loss differs, and the loop waits for the first batch alone."""
    script = write_script(grain_scripts.AHEAD)
    ran = run_child(script, window=WHOLE)
    assert ran.returncode == 0 and not notes(ran), (ran.output, notes(ran))
    assert ran.facts["as_written"]["device_prefetch"] == 0 and "device_prefetch" not in ran.facts["left_out"]
    turned = run_child(script, AHEAD, knowledge=known_by(ran), window=WHOLE)
    assert turned.returncode == 0 and not notes(turned), (turned.output, notes(turned))
    assert turned.evidence("device_prefetch") == "verified", turned.of("knob")
    assert losses(turned) == losses(ran) and len(losses(ran)) == 50
    assert turned.facts["samples"] == ran.facts["samples"] == 800
    assert wait_s(turned) < 0.25 * wait_s(ran), (wait_s(turned), wait_s(ran))
    applied = run_child(script, AHEAD, knowledge=KNOWN, mode="apply")
    assert losses(applied) == losses(ran) and "in effect: device_prefetch" in applied.output, applied.output


IN_ONE_PLACE = """
PLACES = np.zeros((2, 16, 8), "float32")

def slowly(batch):
    time.sleep(0.02)
    PLACES[0], PLACES[1] = PLACES[1], batch[0]
    return PLACES[1], batch[1].astype("int64")
"""


def test_batches_that_lie_in_one_place_are_kept_apart(run_child: Run, write_script: Write) -> None:
    """What makes them uses their memory again, before a step has read it."""
    script = write_script(grain_scripts.AHEAD.replace("def batches", IN_ONE_PLACE.lstrip() + "\ndef batches"))
    plain = run_child(script, mode="apply")
    turned = run_child(script, {"device_prefetch": 8}, knowledge=KNOWN, mode="apply")
    assert losses(turned) == losses(plain) and len(losses(plain)) == 50, turned.output
    assert "in effect: device_prefetch" in turned.output, turned.output


LEFT_OUT = {
    "changed": ("x *= 2", "the script does more with x than to give it to functions that it compiles"),
    "kept": ("kept = [x]", "the script does more with x than to give it to functions that it compiles"),
    "drawn": ("", "slowly draws random numbers of the process, of which another thread would draw at other times"),
    "own": ("", "RNG draws random numbers of its own: ahead, and so others once an epoch is broken off"),
}
INSTEAD = {
    "drawn": "return batch[0] + np.random.normal(), batch[1]\n\nnp.random.seed(1)",
    "own": "return batch[0] + RNG.normal(), batch[1]\n\nRNG = np.random.default_rng(1)",
}
OTHERS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("kept", "drawn")]


@pytest.mark.parametrize("kind", ["changed", "own", *OTHERS])
def test_batches_that_the_script_may_change_or_draw_are_not(kind: str, run_child: Run, write_script: Write) -> None:
    """Neither in a trial of the script as written, nor where a profile asks for it."""
    line, why = LEFT_OUT[kind]
    # Once the loss was read: JAX may read the very memory of NumPy's array until the step is done.
    text = grain_scripts.AHEAD.replace("        time.sleep", f"        {line or 'pass'}\n        time.sleep")
    script = write_script(text.replace("return batch", INSTEAD.get(kind, "return batch")))
    ran = run_child(script, window=WHOLE)
    assert ran.facts["left_out"]["device_prefetch"] == why, ran.facts
    turned = run_child(script, AHEAD, knowledge=known_by(ran), window=WHOLE)
    assert turned.evidence("device_prefetch") == "not applicable" and losses(turned) == losses(ran)
