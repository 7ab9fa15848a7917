"""Optimizer steps: the global plan of an epoch, its packing by windows, its assignment to ranks."""
