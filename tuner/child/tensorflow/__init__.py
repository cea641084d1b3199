"""TensorFlow: loops of the script's own, and what Keras on TensorFlow shares with them; tf.data in ``data``.

Imports what all adapters share, one folder up, and not Keras' folder; TensorFlow itself inside functions only.
"""

FRAMEWORK = "keras"
"""What a framework that trains is called here: one adapter knows Keras and the loops of TensorFlow's own."""


def elsewhere(backend: str) -> str:
    """For people: that Keras computes with another backend, where a knob of TensorFlow's does nothing."""
    return f"Keras computes with {backend} here"
