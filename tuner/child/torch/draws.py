"""Where the random generators stand that a forward pass may draw from, and putting them back."""

from __future__ import annotations

import pickle
import random
import sys
from types import ModuleType


class Draws:
    """The generators of PyTorch (the CPU's and the current GPU's), Python and NumPy, as they stood when it was made."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None

    def moved(self) -> bool:
        """Whether anything was drawn since."""
        now, same = Draws(self._torch), self._torch.equal
        if not same(self._cpu, now._cpu) or self._python != now._python:
            return True
        if self._cuda is not None and now._cuda is not None and not same(self._cuda, now._cuda):
            return True
        return self._numpy is not None and pickle.dumps(self._numpy) != pickle.dumps(now._numpy)

    def put_back(self) -> None:
        """As they stood."""
        self._torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            self._torch.cuda.set_rng_state(self._cuda)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
