"""NumPy, from which loops and augmentations draw their random numbers."""
