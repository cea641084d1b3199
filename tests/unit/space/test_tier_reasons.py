"""Each knob's tier has its sentence: why nothing but speed may change, or that a screen looks at what does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuner.space import Knob
from tuner.space.registry import SPACES, load_space, names

README = (Path(__file__).parents[3] / "search_spaces" / "README.md").read_text(encoding="utf-8")
KNOBS = [pytest.param(knob, id=f"{space}-{knob.name}") for space in names(SPACES) for knob in load_space(space).knobs]


def _rows() -> set[tuple[str, int, str]]:
    """Name, tier and sentence of each row of the document's table of tiers."""
    section = README.partition("## Why a knob is in its tier\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| .*? \| (\d) \| (.*?) \|$", section, re.MULTILINE)
    return {(name, int(tier), sentence) for name, tier, sentence in rows}


@pytest.mark.parametrize("knob", KNOBS)
def test_a_tier_has_its_reason(knob: Knob) -> None:
    """Tier 1 isn't screened, so that its sentence has to say why it needn't be; of the others a screen decides."""
    sentence = knob.tier_reason
    assert sentence[:1].isupper() and sentence.endswith(".") and len(sentence.split()) > 5, sentence
    assert ("screened" in sentence) == (knob.tier > 1), sentence


def test_the_document_says_it_of_each_knob() -> None:
    declared = {(knob.name, knob.tier, knob.tier_reason) for space in names(SPACES) for knob in load_space(space).knobs}
    assert _rows() == declared


@pytest.mark.parametrize("knob", KNOBS)
def test_the_tables_of_knobs_agree_on_the_tier(knob: Knob) -> None:
    tables = README.partition("## Why a knob is in its tier\n")[0]
    rows = re.findall(rf"^\|[^|]*`{knob.name}`[^|]*\|.*\| (\d) \|$", tables, re.MULTILINE)
    assert rows and {int(tier) for tier in rows} == {knob.tier}
