"""Reads the session files of coding agents. It extracts counts and metadata, never message text."""
