"""PyTorch, and the trainers that wrap it."""
