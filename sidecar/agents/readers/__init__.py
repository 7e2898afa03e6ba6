"""One file an agent: where its sessions lie, and what of them is read."""
