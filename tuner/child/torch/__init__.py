"""PyTorch, and the trainers that wrap it: what is watched and turned of it, a file each.

Imports what all adapters share, one folder up, and no other library's folder; torch itself inside functions only.
"""
