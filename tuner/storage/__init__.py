"""What is kept: the database, files, locks, and their check."""
