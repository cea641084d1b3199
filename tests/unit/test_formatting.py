"""How figures are written for people."""

from __future__ import annotations

import pytest

from tuner.formatting import interval_text, ratio_text
from tuner.model import Ratio


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.0032, 1.204, "1.003 to 1.20"), (0.9961, 1.0004, "0.996 to 1.0004"), (1.0, 1.25, "1.00 to 1.25"),
        (1.00001, 1.1, "1.00 to 1.10"), (0.5, 0.996, "0.50 to 0.996"), (1.70, 1.86, "1.70 to 1.86"),
    ],
)  # fmt: skip
def test_an_end_of_an_interval_shows_on_which_side_of_1_it_lies(low: float, high: float, text: str) -> None:
    """"faster" beside an interval from 1.00 looks like a mistake."""
    assert interval_text(Ratio(1.09, low, high)) == text
    assert ratio_text(Ratio(1.09, low, high)) == f"1.09x [{text.replace(' to ', ', ')}]"
