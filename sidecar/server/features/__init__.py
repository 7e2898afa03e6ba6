"""The server's features, one module per area. Each module has a `register` function."""
