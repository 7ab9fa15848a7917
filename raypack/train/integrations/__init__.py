"""Other trainers over packed data."""
