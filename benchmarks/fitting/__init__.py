"""Fits estimates and their error bands: `python -m benchmarks fit-estimates`."""
