"""Files of the input: which there are, and how their rows are read."""
