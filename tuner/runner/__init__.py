"""Turns a config into an outcome: a process, its limits, what it left, and what that means.

Knows one trial and no study: what to try and what comes of it are decided above. Imports values, ``tuner.analysis``,
``tuner.devices`` and ``tuner.storage``, and of ``tuner.child`` its protocol only.
"""
