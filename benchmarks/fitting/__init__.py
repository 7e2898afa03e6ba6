"""The fit of estimates and their bands: `python -m benchmarks fit-estimates`."""
