"""What a study can run on: a file a kind of device, and what the host is besides.

Whatever depends on the kind of a device belongs here, so that no other folder asks for it. What is done to a
framework on a device belongs into ``tuner.child``. Imports values only; NVML is imported nowhere else.
"""
