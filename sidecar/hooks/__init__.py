"""Hooks that ask the spending caps before a coding agent sends a prompt."""
