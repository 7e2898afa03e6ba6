"""Mutable process state, such as open documents, counts, conversations and spending."""
