"""The token batches of one data rank, and their records."""
