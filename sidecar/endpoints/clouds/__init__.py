"""Vendors' own count endpoints, known by host: these are never probed with a POST."""
