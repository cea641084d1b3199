"""JAX: loops around ``jax.jit`` and eager ones, with optax, Flax or none of them; of Keras' own loops nothing."""

FRAMEWORK = "jax"
"""What ``Knowledge.framework`` says of them, and the name under which steps are counted."""
