"""Grain: the loaders that feed loops of JAX's, and what of them can be turned. It trains nothing by itself."""

NAME = "Grain loader"
"""What feeds a loop, for people."""
KNOBS = ("num_workers", "prefetch_factor", "read_threads", "read_buffer")
