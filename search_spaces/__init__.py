"""What can be turned in the scripts of each framework, a file a framework: declarations only.

Loaded through entry points, as a third party's would be. Imports ``tuner.space`` and values; how a knob is applied is
``tuner.child``'s business.
"""
