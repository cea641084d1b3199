"""Fields of a config of ml_collections', as most of Flax' examples have one: options, as typed by --config.x=1."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.jax_scripts import SCRIPTS

pytestmark = pytest.mark.ml_collections

WRITTEN = "STEPS, BATCH = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20"
WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1, "block_s": 0.0}
KIND = """
from absl import flags
from ml_collections import config_dict, config_flags
config = config_dict.ConfigDict({FIELDS})
config_flags.DEFINE_config_dict("config", config)
READ_BEFORE = config.to_dict()
flags.FLAGS(sys.argv)
config = flags.FLAGS.config
BATCH, STEPS = VALUE, 30
"""
PLAIN = '"batch_size": 20, "name": "a", "seen": (1, 2), "later": config_dict.placeholder(int), "eval_batch_size": 20'
REFERENCE = '"batch_size": (size := config_dict.FieldReference(20)), "rows": size * 3'
NESTED = '"train": {"batch_size": 20}, "eval": {"batch_size": 20}'
CONFIGS = {
    "plain": (PLAIN, "config.batch_size", "config.batch_size"),
    "a reference": (REFERENCE, "config.batch_size", "config.rows // 3"),
    "computed from another field": (
        '"of_each": (size := config_dict.FieldReference(10)), "batch_size": size * 2', "config.batch_size",
        "config.batch_size",
    ),
    "one of two groups": (NESTED, "config.train.batch_size", "config.train.batch_size"),
}  # fmt: skip


def _script(fields: str, value: str) -> str:
    return SCRIPTS["jitted"].replace(WRITTEN, KIND.replace("FIELDS", fields).replace("VALUE", value))


def _known(field: str, written: int = 20) -> dict[str, Any]:
    return {
        "framework": "jax", "unit": "samples", "as_written": {"batch_size": written}, "options": {"batch_size": field},
        "option_flags": {"batch_size": f"--{field}"},
    }  # fmt: skip


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_field_is_found_and_set(kind: str, run_child: Callable[..., Any], write_script: Callable[..., Path]) -> None:
    fields, field, value = CONFIGS[kind]
    script = write_script(_script(fields, value))
    facts = run_child(script, window=WHOLE).facts
    assert (facts["as_written"]["batch_size"], facts["options"]) == (20, {"batch_size": field})
    assert facts["option_flags"] == {"batch_size": f"--{field}"} and "batch_size" not in facts["left_out"]

    ran = run_child(script, {"batch_size": 35}, knowledge=_known(field), window=WHOLE)
    assert ran.evidence("batch_size") == "verified", ran.of("knob")
    assert ran.facts["samples"] == int(re.findall(r"^trained on (\d+)$", ran.output, re.MULTILINE)[-1]) == 1000

    applied = run_child(script, {"batch_size": 35}, mode="apply", knowledge=_known(field))
    assert "in effect: batch_size" in applied.output and "NOT" not in applied.output


def test_one_that_is_typed_as_well(run_child: Callable[..., Any], write_script: Callable[..., Path]) -> None:
    script = write_script(_script(PLAIN, "config.batch_size"))
    typed = ("--config.batch_size=25",)
    facts = run_child(script, argv=typed, window=WHOLE).facts
    assert (facts["as_written"]["batch_size"], facts["options"]) == (25, {"batch_size": "config.batch_size"})
    ran = run_child(script, {"batch_size": 35}, argv=typed, knowledge=_known("config.batch_size", 25), window=WHOLE)
    assert ran.evidence("batch_size") == "verified", ran.of("knob")


def test_one_that_the_script_does_not_go_by(run_child: Callable[..., Any], write_script: Callable[..., Path]) -> None:
    """It has read the config before its flags were parsed."""
    script = write_script(_script(PLAIN, 'READ_BEFORE["batch_size"]'))
    ran = run_child(script, {"batch_size": 35}, knowledge=_known("config.batch_size"), window=WHOLE)
    assert ran.evidence("batch_size") == "contradicted", ran.of("knob")
    assert "observed 20: the option was set back, or had been read before" in str(ran.of("knob"))


def test_one_of_a_file_that_is_locked(run_child: Callable[..., Any], write_script: Callable[..., Path]) -> None:
    """As Flax' examples have it: absl's ``app`` parses, and the trial's arguments name the file."""
    defined = 'config_flags.DEFINE_config_file("config", None, lock_config=True)\nREAD_BEFORE = {}'
    parsed = "from absl import app\napp._run_init(sys.argv, app.parse_flags_with_usage)"
    text = KIND.replace("flags.FLAGS(sys.argv)", parsed)
    text = re.sub(r"config = config_dict(.|\n)*?to_dict\(\)", defined, text).replace("VALUE", "config.batch_size")
    script = write_script(SCRIPTS["jitted"].replace(WRITTEN, text))
    file = script.with_name("default.py")
    made = f"def get_config(): return config_dict.ConfigDict({{{PLAIN}}})"
    file.write_text(f"from ml_collections import config_dict\n{made}\n")
    argv = (f"--config={file}",)
    assert run_child(script, argv=argv, window=WHOLE).facts["options"] == {"batch_size": "config.batch_size"}
    ran = run_child(script, {"batch_size": 35}, argv=argv, knowledge=_known("config.batch_size"), window=WHOLE)
    assert ran.evidence("batch_size") == "verified", ran.of("knob")
