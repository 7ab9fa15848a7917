"""The index: examples in Parquet, Arrow and Hugging Face files that stay where they are."""
