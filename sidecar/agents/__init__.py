"""Reads token counts and metadata from coding agents' session files."""
