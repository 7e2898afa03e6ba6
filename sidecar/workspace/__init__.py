"""Owns all mutable state: documents, counts, conversations, agent sessions, spending, status."""
