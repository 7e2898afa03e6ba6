"""One file a kind of model server: how it counts, what it allocates, how it is known."""
