"""TensorFlow and Keras for tests in this very process, imported where a test first uses them.

Every process of tests collects all files, and to import these takes 5 s of a core: those that run other files do
without. What they warn of while they are imported is no business of a test.
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any


class Later:
    """A module that is imported when something of it is asked for. ``sys.modules`` doesn't have it before.

    For what tests call themselves: who patches a module is given the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            # pytest asks everything that a file of tests names for marks of its own, while it collects.
            raise AttributeError(name)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(importlib.import_module(self._name), name)


tf: Any = Later("tensorflow")
keras: Any = Later("keras")
