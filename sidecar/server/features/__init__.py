"""The server's features, one module per area. Each has a function `register(server)`."""
