"""Proposes configs. A sampler is a function of the study's history: resuming needs nothing else.

Runs nothing and stores nothing. Imports values, the search space and the analysis; Optuna is imported nowhere else.
"""
