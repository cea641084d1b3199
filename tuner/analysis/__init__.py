"""Figures from trials: what a trial's records measure, and what several trials say of each other.

Pure functions: values and raw records come in, values come out. Nothing here runs, stores or prints anything.
Imports values and the search space only.
"""
