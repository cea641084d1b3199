"""Writes what a study found into files for other programs. Receives the result, never fetches it.

A format is one file here: a class with the attributes and methods of ``tuner.export.base.Exporter``, and an entry in
``EXPORTERS``. The command line checks every target before the first trial and writes all of them after the last.
"""

from __future__ import annotations

from tuner.export.base import Exporter
from tuner.export.profile import ProfileExporter

PROFILE = ProfileExporter()
"""best.json, which ``autotune run`` applies."""
EXPORTERS: tuple[Exporter, ...] = (PROFILE,)
"""Each writes one file into the study's folder, in this order."""
