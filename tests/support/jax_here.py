"""JAX in the tests' own process, without its warning at each fork: other tests fork there, and warnings are errors.

What it compiles runs a few times, and isn't optimized.
"""

from __future__ import annotations

import jax
from jax._src import xla_bridge

xla_bridge._at_fork_handler_installed = True
jax.config.update("jax_disable_most_optimizations", True)

__all__ = ["jax"]
