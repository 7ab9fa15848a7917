"""Steps over the epochs of a run, planned for ranks under either deal, and their micro-batches."""
