"""Loads and validates a project's settings."""
