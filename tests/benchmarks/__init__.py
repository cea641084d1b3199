"""What is measured or checked by hand, and takes minutes."""
