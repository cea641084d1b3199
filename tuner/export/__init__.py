"""Turns what a study found into files for others. Receives data, never fetches it."""
