"""Connects to model servers and vendors over HTTP for probing, counting and context windows."""
