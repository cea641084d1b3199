"""What the reference lists is what the code takes: options, keys of study.toml, knobs, verbs."""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tuner.cli import VERBS, build_parser
from tuner.cli.settings import DEFAULTS
from tuner.space.registry import SPACES, load_space, names

ROOT = Path(__file__).parents[2]
CLI = (ROOT / "tuner" / "cli" / "README.md").read_text(encoding="utf-8")
KNOBS = (ROOT / "search_spaces" / "README.md").read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What stands below a heading of any level, up to the next one of the same level or above."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found is not None, f"there is no heading {heading!r}"
    end = re.search(rf"^#{{1,{len(found[1])}}} ", text[found.end() :], re.MULTILINE)
    return text[found.end() :][: end.start() if end else None]


def parser_of(verb: str) -> argparse.ArgumentParser:
    verbs = next(a for a in build_parser((verb,))._actions if isinstance(a, argparse._SubParsersAction))
    parser = verbs.choices[verb]
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def options_of(verb: str) -> set[str]:
    return {name for action in parser_of(verb)._actions for name in action.option_strings} - {"-h", "--help"}


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_documented(verb: str) -> None:
    assert {option for option in options_of(verb) if not re.search(rf"{option}\b", CLI)} == set()


def test_no_option_is_documented_that_is_not_there() -> None:
    rows = [line.split("|")[1] for line in CLI.splitlines() if line.startswith("| `-")]
    written = {option for row in rows for option in re.findall(r"--[a-z][a-z-]+", row)}
    assert len(rows) > 10 and written <= set().union(*(options_of(verb) for verb in VERBS))


def test_the_documented_study_toml_has_every_key() -> None:
    example = tomllib.loads(section(CLI, "study.toml").partition("```toml\n")[2].partition("```")[0])
    # A script and a module exclude each other: one of them stands in a comment.
    assert {*example["study"], "module"} == set(DEFAULTS)


@pytest.mark.parametrize("space", names(SPACES))
def test_every_knob_is_documented_with_its_devices_and_tier(space: str) -> None:
    headings = {"torch": "PyTorch", "keras": "TensorFlow and Keras", "jax": "JAX"}
    rows: dict[str, tuple[str, int]] = {}
    for line in section(KNOBS, headings[space]).splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 6 and cells[4].isdigit():
            rows.update(dict.fromkeys(re.findall(r"`(\w+)`", cells[1]), (cells[3], int(cells[4]))))
    assert rows == {
        knob.name: ("all" if knob.devices is None else ", ".join(sorted(knob.devices)), knob.tier)
        for knob in load_space(space).knobs
    }


def test_every_verb_stands_on_the_front_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = section(readme, "Verbs")
    assert {name for name in VERBS if f"| `autotune {name} " not in table} == set()


def test_every_verb_stands_in_the_table_of_its_folder() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)\.py` \|", section(CLI, "Verbs"), re.MULTILINE)
    assert {name: f"tuner.cli.{file}" for name, file in rows} == VERBS


GOLDEN = sorted((ROOT / "tests" / "golden").glob("*.json"))
NAMES_OF_OTHERS = {
    "config", "first", "turned", "left_out", "environment", "metrics", "knowledge", "frameworks", "max_metric_drop",
    "max_metric_rise",
}  # fmt: skip
"""Fields that hold knobs, packages and the script's own words."""


def fields_of(document: Any) -> set[str]:
    if isinstance(document, list):
        return set().union(*map(fields_of, document))
    if not isinstance(document, dict):
        return set()
    return {*document}.union(*(fields_of(value) for name, value in document.items() if name not in NAMES_OF_OTHERS))


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_every_field_that_is_printed_or_exported_is_documented(golden: Path) -> None:
    export = (ROOT / "tuner" / "export" / "README.md").read_text(encoding="utf-8")
    told = {*re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", export + section(CLI, "JSON of the lists"))))}
    assert fields_of(json.loads(golden.read_text(encoding="utf-8"))) - told == set()
