"""The table of prices: what is one is read as it was written, and everything else is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tuner.cli.prices import Prices, find_prices, read_prices
from tuner.errors import UsageError

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=20)


@given(st.dictionaries(NAMES, st.floats(0, 1e9) | st.integers(0, 10**9), max_size=5))
def test_a_table_comes_back_as_it_was_written(table: dict[str, float]) -> None:
    lines = [f"{json.dumps(name, ensure_ascii=False)} = {price!r}" for name, price in table.items()]
    assert read_prices("\n".join(["[prices]", *lines]), "prices.toml") == table


@given(st.text(max_size=60))
@example('[prices]\n"a" = ' + "9" * 400)
@example("[prices]\na = [" + "[" * 5000)
@example("prices = 3")
@example("[[prices]]\na = 1")
def test_any_text_is_a_table_or_is_refused(text: str) -> None:
    try:
        prices = read_prices(text, "prices.toml")
    except UsageError as error:
        assert "prices.toml" in error.message and error.hint
    else:
        assert prices is None or all(0 <= price <= 1e9 for price in prices.values())


@pytest.mark.parametrize("price", ["-1", "nan", "inf", "true", '"3.2"', "[3.2]", "2026-01-01", "1e10"])
def test_what_is_no_price_is_named(price: str) -> None:
    with pytest.raises(UsageError, match=r"prices\.toml: the price of 'Imaginary GPU' is .*, not an amount of money"):
        read_prices(f'[prices]\n"Imaginary GPU" = {price}', "prices.toml")


def test_a_table_with_a_mistyped_name_is_no_empty_one() -> None:
    with pytest.raises(UsageError, match="unknown table 'price'") as caught:
        read_prices("[price]\na = 1", "prices.toml")
    assert caught.value.hint == "did you mean [prices]?"
    assert read_prices("[study]\ndevice = 'cpu'", "study.toml") is None
    assert read_prices("[prices]", "prices.toml") == {}


def test_the_first_name_that_has_a_price_counts_and_a_mistyped_one_is_found() -> None:
    prices = Prices("prices.toml", {"Imaginary CPU": 1.0, "Imaginary CPU, 4 cores": 0.5, "nvidia h200": 3.0})
    assert prices.of("Imaginary CPU, 4 cores", "Imaginary CPU") == 0.5
    assert prices.of("Imaginary CPU, 8 cores", "Imaginary CPU") == 1.0
    assert prices.of("NVIDIA H200") is None
    assert prices.meant("NVIDIA H200") == "nvidia h200"
    assert prices.meant("an abacus") == ""


@pytest.mark.parametrize(
    ("entry", "meant"), [("H200", True), ("h200 nvl", True), ("cuda", True), ("NVIDIA H100", False), ("", False)]
)
def test_a_part_of_the_name_and_the_kind_are_found_as_well(entry: str, meant: bool) -> None:
    """A price per kind of device, or per model without its maker, said no more than that there was none."""
    prices = Prices("prices.toml", {entry: 1.0})
    assert prices.of("NVIDIA H200 NVL") is None
    assert prices.meant("NVIDIA H200 NVL", "cuda") == (entry if meant else "")


def test_prices_are_found_in_the_file_or_the_study_toml_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_prices(None) == Prices()
    (tmp_path / "study.toml").write_text('[study]\nscript = "train.py"\n')
    assert find_prices(None) == Prices()
    (tmp_path / "study.toml").write_text('[study]\nscript = "train.py"\n[prices]\nA = 1\n')
    assert find_prices(None) == Prices("study.toml", {"A": 1.0})
    (tmp_path / "own.toml").write_text("[prices]\nA = 2\n")
    assert find_prices("own.toml") == Prices("own.toml", {"A": 2.0})
