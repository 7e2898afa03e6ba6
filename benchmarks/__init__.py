"""Benchmarks that compare token-sidecar with named peers in one run: `python -m benchmarks`."""
