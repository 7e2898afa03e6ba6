"""The server's features, one module per group of LSP methods or background jobs."""
