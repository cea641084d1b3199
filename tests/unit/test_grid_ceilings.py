"""What anybody could choose who reads a whole grid."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from grid_ceilings import main, shares

SMALL = Path(__file__).parents[1] / "assets" / "grid-small.jsonl.gz"


LANGUAGE = Path(__file__).parents[1] / "benchmarks" / "grids" / "language.jsonl.gz"


@pytest.mark.slow  # 5 s beside three others
def test_who_knows_a_half_of_all_recordings_chooses_better_than_by_short_readings() -> None:
    found = [shares(LANGUAGE, seed) for seed in range(2)]
    assert all(0 < share <= 1 for row in found for share in row)
    read, _, known = map(statistics.fmean, zip(*found, strict=True))
    assert read < 0.9 < known, found


def test_a_row_a_grid_with_how_often_it_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SMALL), "--seeds", "2"]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| grid-small | ") and row.count(" of 2 |") == 3, row
