"""Reads messages, tool schemas, media, usage and replies in the format of any vendor."""
