"""Knobs and search spaces: what a search space declares, and what a study makes of it.

A search space of one's own needs nothing else: ``from tuner.space import Knob, SearchSpace``. The declarations that
come along are in ``search_spaces/``, and are loaded as a third party's would be. Imports values only.
"""

from __future__ import annotations

from tuner.space.declare import Knob, Known, SearchSpace

__all__ = ["Knob", "Known", "SearchSpace"]
