"""What the server does, one file an area; each has `register(server)`."""
