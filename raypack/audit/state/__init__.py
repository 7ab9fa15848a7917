"""What a checkpoint holds, and what it would give to another number of ranks."""
