"""Who filled the machine: told by what is left once the trial is gone."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tuner.runner import machine_memory
from tuner.runner.machine_memory import SCARCE, MachineMemory

GIB = 2**30
TOTAL = 64


class Machine:
    """A made-up machine of 64 GiB: what others and the trial hold of it, in GiB."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.others = self.trial = self.files = 0.0
        patch.setattr(machine_memory, "host_memory", lambda: (TOTAL * GIB, int(self.available * GIB)))
        patch.setattr(machine_memory, "shared_memory", lambda: int(self.files * GIB))

    @property
    def available(self) -> float:
        return max(0.0, TOTAL - self.others - self.trial - self.files)

    def run(
        self, memory: MachineMemory, *, before: float, after: float, trial: float, files: float = 0.0,
        baseline: bool = False,
    ) -> str:
        """One trial; what is said of the others when it is gone, and ``files`` of its own in shared memory remain."""
        self.others, self.trial, self.files = before, 0.0, 0.0
        memory.begin()
        self.others, self.trial, self.files = after, trial, files
        memory.left()
        self.trial = 0.0
        return memory.taken_by_others(baseline=baseline)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_who_filled_it(machine: Machine) -> None:
    memory = MachineMemory()
    assert "hold 62.5 of its 64.0 GiB" in machine.run(memory, before=4, after=62.5, trial=1)
    assert machine.run(memory, before=4, after=4, trial=60) == ""
    assert machine.run(memory, before=4, after=6, trial=57) == "", "they grew, but by less than would matter"
    assert machine.run(memory, before=4, after=4, trial=1, files=58) == "", "its files stayed in shared memory"
    assert machine.run(memory, before=4, after=50, trial=1) == "", "it wasn't full"
    assert machine.run(memory, before=62, after=62, trial=1), "less was held before an earlier trial"


def test_a_machine_that_was_full_from_the_start(machine: Machine) -> None:
    assert machine.run(MachineMemory(), before=62.5, after=62.5, trial=1, baseline=True)
    assert machine.run(MachineMemory(), before=62.5, after=62.5, trial=1) == "", "it doesn't fit beside what was there"
    assert machine.run(MachineMemory(), before=40, after=40, trial=23, baseline=True) == "", "there was room"


@given(before=st.floats(0, 57), trial=st.floats(0, TOTAL), baseline=st.booleans())
def test_who_fills_it_alone_is_to_blame(before: float, trial: float, baseline: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        assert Machine(patch).run(MachineMemory(), before=before, after=before, trial=trial, baseline=baseline) == ""


@given(others=st.floats(0, TOTAL), trial=st.floats(0, 30))
def test_a_trial_that_would_have_fitted_alone_is_never_to_blame(others: float, trial: float) -> None:
    left = TOTAL - trial - others
    assume(left >= 0 and abs(left - SCARCE * TOTAL) > 0.01)
    with pytest.MonkeyPatch.context() as patch:
        said = Machine(patch).run(MachineMemory(), before=0, after=others, trial=trial)
        assert bool(said) is (left < SCARCE * TOTAL)
