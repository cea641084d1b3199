"""What a study may buy, a file an objective: a figure of a measurement, and which way is better.

Declarations only, loaded through entry points, as a third party's would be. Imports ``tuner.objective`` and values.
"""
