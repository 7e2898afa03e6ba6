"""Conversations: what they contain, how full their context window is, and how to make room."""
