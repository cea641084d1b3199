"""What ``autotune record`` left: its folder, its grid, and the trials that the grid is made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tuner.model import Trial
from tuner.runner.grid_replay import GridReplay
from tuner.storage.database import Repository
from tuner.storage.folder import DATABASE
from tuner.storage.grid import read_grid


@dataclass(frozen=True)
class Recorded:
    """What a recording left."""

    folder: Path
    replay: GridReplay
    trials: list[Trial]

    @property
    def by_turns(self) -> list[Trial]:
        """Those that took turns with the script as written. On a busy machine one may be measured by itself."""
        return [each for each in self.trials if each.measurement is not None and each.measurement.reference is not None]


def recorded_in(folder: Path, grid: Path) -> Recorded:
    """Reads the study in ``folder``, and the grid that it was written to."""
    repository = Repository(f"sqlite:///{folder / DATABASE}")
    try:
        trials = list(repository.trials(repository.studies()[0].id))
    finally:
        repository.close()
    return Recorded(folder, GridReplay(read_grid(grid)), trials)
