"""Starting and restoring a worker at any world size."""
