"""TensorFlow: loops of the script's own, and what Keras on TensorFlow shares with them."""
