"""The readers, one module per agent. Each describes where the agent keeps sessions."""
