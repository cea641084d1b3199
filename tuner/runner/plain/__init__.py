"""What a run under plain Python is given: one module that keeps the user's files as they are."""
