"""The features of the server, one module per area. Each module has a `register` function."""
