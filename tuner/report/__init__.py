"""What a study found, in words, tables and pictures for people. A file a subject.

Receives values and returns lines or JSON's own types; opens no database and prints nothing. Imports values, the
analysis and ``tuner.formatting``. How a single figure is written stands in ``tuner.formatting``, files for programs
are in ``tuner.export``.
"""
