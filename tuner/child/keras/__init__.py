"""Keras, whatever computes below it: ``fit``, models, evidence, and the adapter that TensorFlow's own loops share.

Imports what all adapters share, one folder up, and ``..tensorflow``; Keras itself inside functions only.
"""
