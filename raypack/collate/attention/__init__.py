"""What each attention backend needs, which one to take, and the proof that it isolates."""
