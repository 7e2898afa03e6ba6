"""Text to Count: engines, estimates, calibration, incremental counting, model catalogue."""
