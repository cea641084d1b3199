"""The phases of a study, a file each, and what they share.

A phase decides what is run next and when it is done; how a trial is run is ``tuner.runner``'s, and what the figures
mean ``tuner.analysis``'s. Emits events and knows nothing of terminals. Imports everything below it; only
``tuner.cli`` and what receives results lie above.
"""
