"""Reads messages, tool schemas, media, usage and replies in every vendor's format."""
