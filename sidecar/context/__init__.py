"""Conversations: their contents, how full their context window is, and how to make room."""
