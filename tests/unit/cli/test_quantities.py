"""Sizes and durations as people write them."""

from __future__ import annotations

import pytest

from tuner.cli.quantities import parse_bytes, parse_seconds
from tuner.errors import UsageError

TOTAL = 64 * 2**30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20GiB", 20 * 2**30),
        ("20gib", 20 * 2**30),
        ("20 GiB", 20 * 2**30),
        ("1.5Gi", 3 * 2**29),
        ("800MB", 800_000_000),
        ("800M", 800_000_000),
        ("2T", 2 * 10**12),
        ("512B", 512),
        ("0.9", int(0.9 * TOTAL)),
        ("1", TOTAL),
        ("90%", int(0.9 * TOTAL)),
        (".5", TOTAL // 2),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_bytes(text, TOTAL) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "20 GiBs", "1e9", "0", "0%", "101%", "0GiB", "nan", "20GiB/s"])
def test_what_is_no_size_is_refused_with_the_value_and_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes(text, TOTAL)
    assert repr(text) in caught.value.message
    assert caught.value.hint


def test_a_share_of_an_unknown_total_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes("0.9", 0)
    assert "20GiB" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("90s", 90),
        ("30m", 1800),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("250ms", 0.25),
        ("2D", 172800),
        ("1.5h", 5400),
    ],
)
def test_durations(text: str, expected: float) -> None:
    assert parse_seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "h", "-5m", "1h30", "5 minutes", "inf", "0", "0s", "1y"])
def test_what_is_no_duration_is_refused_with_the_value_and_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_seconds(text)
    assert repr(text) in caught.value.message
    assert "30m" in caught.value.hint
