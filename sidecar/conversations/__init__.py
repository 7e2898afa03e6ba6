"""Conversations with AI models: contents, occupancy and pruning, as pure values."""
