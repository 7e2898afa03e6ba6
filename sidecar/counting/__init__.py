"""Counts tokens: engines, vocabulary files, estimates, calibration and fitting."""
