"""Text to a count: engines, vocabulary files, estimates, calibration, fitting."""
