"""Conversations: their contents, how full the context window is, and how to free space in it."""
