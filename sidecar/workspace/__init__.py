"""The mutable state of a process: documents, counts, conversations, agent sessions and spending."""
