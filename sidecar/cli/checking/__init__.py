"""Checks files for `token-sidecar check`: counting, caching, growth and reports."""
