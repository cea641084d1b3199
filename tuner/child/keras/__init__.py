"""Keras, whatever computes below it."""
