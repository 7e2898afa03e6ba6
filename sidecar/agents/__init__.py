"""Session files of coding agents: read only, counts only."""
