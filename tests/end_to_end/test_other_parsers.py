"""Options that a script reads by absl's flags, click, Fire, tyro or Hydra: they are knobs as argparse's are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.jax_scripts import SCRIPTS

WRITTEN = "STEPS, BATCH = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20"
ABSL = """
from absl import flags
flags.DEFINE_integer("batch_size", 20, "", short_name="b")
flags.DEFINE_integer("steps", 30, "")
flags.register_validator("batch_size", lambda size: size % 5 == 0, "not a multiple of five")
flags.FLAGS(sys.argv)
BATCH, STEPS = flags.FLAGS.batch_size, flags.FLAGS.steps
"""
CLICK = """
import click
@click.command()
@click.option("-b", "--batch-size", default=20)
@click.argument("steps", default=30)
def main(batch_size, steps):
    global BATCH, STEPS
    BATCH, STEPS = batch_size, steps
main(standalone_mode=False)
"""
TYPER = """
import typer
app = typer.Typer()
@app.command()
def train(batch_size: int = typer.Option(20), steps: int = 30):
    global BATCH, STEPS
    BATCH, STEPS = batch_size, steps
@app.command()
def evaluate(batch_size: int = typer.Option(20)):
    pass
app(["train"], standalone_mode=False)
"""
FIRE = """
import fire
def main(batch_size=20, *, steps=30):
    global BATCH, STEPS
    BATCH, STEPS = batch_size, steps
fire.Fire(main)
"""
BY_NAME_ONLY = FIRE.replace("main(batch_size=20, *, steps=30)", "main(*, batch_size=20, steps=30)")
CHAINED = """
import fire
class Training:
    def evaluate(self, batch_size=40):
        assert batch_size == 40
        return self
    def train(self, batch_size=20):
        global BATCH, STEPS
        BATCH, STEPS = batch_size, 30
sys.argv = sys.argv[:1] + ["evaluate", "-", "train"]
fire.Fire(Training)
"""
TYRO = """
import dataclasses, tyro
@dataclasses.dataclass(frozen=True)
class Evaluation:
    batch_size: int = 20
@dataclasses.dataclass(frozen=True)
class Training:
    batch_size: int = 20
    def __post_init__(self):
        assert self.batch_size % 5 == 0
def main(training: Training = Training(), evaluation: Evaluation = Evaluation(), *, steps: int = 30):
    global BATCH, STEPS
    assert evaluation.batch_size == 20
    BATCH, STEPS = training.batch_size, steps
tyro.cli(main, args=[])
"""
CHOSEN = """
import dataclasses, tyro
@dataclasses.dataclass
class Training:
    batch_size: int = 20
@dataclasses.dataclass
class Evaluation:
    rows: int = 20
BATCH, STEPS = tyro.cli(Training | Evaluation, args=["training"]).batch_size, 30
"""
PLAIN = TYRO.replace("tyro.cli(main", "tyro.cli(tyro.conf.OmitArgPrefixes[main]").replace(
    "evaluation: Evaluation = Evaluation()", "evaluation: tyro.conf.Suppress[Evaluation] = Evaluation()"
)
HYDRA = """
import dataclasses, hydra
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING
@dataclasses.dataclass
class Training:
    batch_size: int = 20
    rows: int = "${training.batch_size}"
    seed: int = MISSING
@dataclasses.dataclass
class Config:
    training: Training = dataclasses.field(default_factory=Training)
    steps: int = 30
ConfigStore.instance().store(name="config", node=Config)
@hydra.main(version_base=None, config_path=None, config_name="config")
def main(config):
    global BATCH, STEPS
    assert config.training.rows == config.training.batch_size
    BATCH, STEPS = config.training.batch_size, config.steps
sys.argv = sys.argv[:1] + ["hydra.run.dir=.", "hydra.output_subdir=null"]
main()
"""
CHECKED = """
def checked(context, option, size):
    assert size % 5 == 0
    return size
"""
LIMITED = {
    "argparse": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=20, choices=[10, 20, 40])
BATCH, STEPS = parser.parse_args().batch_size, 30
""",
    "absl": ABSL,
    "click": CLICK.replace("default=20", "default=20, type=click.IntRange(max=30)"),
    "click, clamped": CLICK.replace("default=20", "default=20, type=click.IntRange(max=30, clamp=True)"),
    "click, by a callback": CHECKED + CLICK.replace("default=20", "default=20, callback=checked"),
    "typer": TYPER.replace("Option(20)", "Option(20, max=30)"),
}
PARSERS = {
    "absl": (ABSL, "batch_size", "--batch_size"), "click": (CLICK, "batch_size", "--batch-size"),
    "typer": (TYPER, "batch_size", "--batch-size"), "Fire": (FIRE, "batch_size", "--batch_size"),
    "tyro": (TYRO, "training.batch_size", "--training.batch-size"),
    "Hydra": (HYDRA, "training.batch_size", "training.batch_size="),
    "Fire, by name only": (BY_NAME_ONLY, "batch_size", "--batch_size"),
    "Fire, chained": (CHAINED, "batch_size", "--batch_size"),
    "tyro, one of two": (CHOSEN, "batch_size", "--batch-size"),
    "tyro, without groups": (PLAIN, "training.batch_size", "--batch-size"),
}  # fmt: skip
PARSERS_OF_THEIR_OWN = ("tyro", "Hydra")
FEW = ("Fire",)
"""The others have a size that they forbid, below; Typer is built on click."""
BY_MARK = [
    pytest.param(each, marks=pytest.mark.parsers) if each.startswith(PARSERS_OF_THEIR_OWN)
    else pytest.param(each, marks=() if each in FEW else pytest.mark.slow)
    for each in PARSERS
]  # fmt: skip
WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1, "block_s": 0.0}
KNOWN = {
    "framework": "jax", "unit": "samples", "as_written": {"batch_size": 20}, "options": {"batch_size": "batch_size"},
}  # fmt: skip


@pytest.fixture(params=BY_MARK)
def script(request: pytest.FixtureRequest, write_script: Callable[..., Path]) -> tuple[Path, str, str]:
    """A loop of JAX's that makes its own batches, the name of their size, and its flag."""
    parser, name, flag = PARSERS[request.param]
    text = SCRIPTS["jitted"].replace(WRITTEN, parser)
    assert parser in text
    return write_script(text), name, flag


def test_the_size_of_a_batch_is_found_and_set(script: tuple[Path, str, str], run_child: Callable[..., Any]) -> None:
    path, name, flag = script
    facts = run_child(path, window=WHOLE).facts
    assert (facts["as_written"]["batch_size"], facts["options"]) == (20, {"batch_size": name})
    assert facts["option_flags"] == {"batch_size": flag} and "batch_size" not in facts["left_out"]

    ran = run_child(path, {"batch_size": 35}, knowledge={**KNOWN, "options": facts["options"]}, window=WHOLE)
    assert ran.evidence("batch_size") == "verified", ran.of("knob")
    assert ran.facts["samples"] == int(re.findall(r"^trained on (\d+)$", ran.output, re.MULTILINE)[-1]) == 1000


@pytest.mark.slow  # 8 s beside three others
@pytest.mark.parametrize(
    "parser", [pytest.param(each, marks=() if each in ("absl", "click") else pytest.mark.slow) for each in LIMITED]
)
def test_a_size_that_the_script_forbids_is_not_set(
    parser: str, run_child: Callable[..., Any], write_script: Any
) -> None:
    """As plain Python refuses it on the command line. The script trains on, and the config isn't in effect."""
    script = write_script(SCRIPTS["jitted"].replace(WRITTEN, LIMITED[parser]))
    ran = run_child(script, {"batch_size": 32}, knowledge=KNOWN, window=WHOLE)
    assert ran.returncode == 0, ran.output
    assert ran.evidence("batch_size") == "contradicted", ran.of("knob")
    assert "the script's parser refuses 32: " in str(ran.of("knob")), ran.of("knob")

    applied = run_child(script, {"batch_size": 32}, mode="apply", knowledge=KNOWN)
    assert "NOT in effect: batch_size (the script's parser refuses 32: " in applied.output, applied.output


# A parser's own way is shown by the trial above: what is applied is set there as in a trial.
@pytest.mark.slow  # 4 s beside three others
@pytest.mark.parametrize("script", [pytest.param("absl", marks=pytest.mark.slow), "click"], indirect=True)
def test_an_applied_run_tells_what_is_in_effect(script: tuple[Path, str, str], run_child: Callable[..., Any]) -> None:
    ran = run_child(script[0], {"batch_size": 35}, mode="apply", knowledge=KNOWN)
    assert ran.returncode == 0, ran.output
    assert "in effect: batch_size" in ran.output and "NOT" not in ran.output
