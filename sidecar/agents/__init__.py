"""Reads the session files of coding agents: only counts, never text."""
