"""Chaos: whole runs whose parts are killed at random moments, proven against an undisturbed training."""
