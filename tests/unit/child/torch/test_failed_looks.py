"""A look at the data that ends in an error of ours: no workers are offered, the fault is noted, the script goes on."""

from __future__ import annotations

from typing import Any

import pytest
from support.copied_data import Begin, Rows, left_out
from support.torch_trials import begin

from tuner.child.torch import copies

__all__ = ["begin"]

pytestmark = pytest.mark.usefixtures("torch_settings_kept")


def fail(*given: Any, **named: Any) -> Any:
    raise AssertionError("not foreseen")


@pytest.mark.parametrize("look", ["own_generator", "counted_up", "opened", "named", "StateWatch"])
def test_no_workers_are_offered_where_a_look_at_the_data_fails(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """It read as if nothing spoke against them."""
    monkeypatch.setattr(copies, look, fail)
    trials: list[Any] = []

    def kept(*given: Any, **named: Any) -> Any:
        trials.append(begin(*given, **named))
        return trials[-1]

    assert left_out(kept, Rows())["num_workers"] == copies.UNKNOWN
    notes = [note["text"] for note in trials[0].log.of("note")]
    assert sum(text.endswith("AssertionError: not foreseen") for text in notes) == 1


def test_lasting_workers_begin_anew_where_a_look_at_the_data_fails(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may hold other data than the script does by then."""
    watch, ended = copies.CopyWatch(), list[bool]()

    class Loader:
        class _iterator:  # PyTorch's own name
            @staticmethod
            def _shutdown_workers() -> None:
                ended.append(True)

    loader: Any = Loader()
    monkeypatch.setattr(copies, "copied", fail)
    watch.renew(loader)
    assert ended and loader._iterator is None
