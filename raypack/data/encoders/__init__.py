"""Rows to examples: texts, prompts, chats and tokens."""
