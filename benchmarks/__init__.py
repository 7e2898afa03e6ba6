"""Ratios to named peers, measured side by side in one run: `python -m benchmarks`."""
