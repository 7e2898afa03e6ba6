"""The parts of `token-sidecar check`: cached counting, growth since a git revision, reports."""
