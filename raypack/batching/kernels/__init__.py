"""The compiled loops of batching; each file is imported by the functions that call it."""
