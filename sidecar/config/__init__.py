"""Options as written to settings as resolved: layers, trust, validation with key and line."""
