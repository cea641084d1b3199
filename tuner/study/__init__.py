"""The phases of a study, and what they share."""
