"""Figures from trials: pure functions of values, and what they show."""
