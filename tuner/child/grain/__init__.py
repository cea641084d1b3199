"""Grain: the loaders that feed loops of JAX's, and what of them can be turned. It trains nothing by itself."""

NAME = "Grain loader"
"""What feeds a loop, for people."""
PUT_AHEAD = "device_prefetch"
"""The knob of batches that a thread makes, and puts on the device, before the loop asks for them."""
KNOBS = ("num_workers", "prefetch_factor", "read_threads", "read_buffer", PUT_AHEAD)
