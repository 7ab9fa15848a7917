"""The store: Arrow shards and tables, written once and memory-mapped."""
