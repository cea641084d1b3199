"""What is kept on disk: the database, the names of files, atomic writes, locks, and the check of what is kept.

Knows no phase of a study. Imports values and the analysis; SQLAlchemy is imported nowhere else.
"""
