"""Reads counts and metadata, but never message text, from coding agents' session files."""
