"""The compiled loops of sampling; each file is imported by the functions that call it."""
