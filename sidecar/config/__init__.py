"""Configuration: layers of options, resolved to validated settings."""
