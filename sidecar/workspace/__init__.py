"""Mutable state of a process, such as open documents, counts, conversations and spending."""
