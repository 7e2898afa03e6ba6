"""Connects to model servers and vendors over HTTP to probe them, count tokens and get windows."""
