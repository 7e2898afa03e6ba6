"""Conversations with AI models: contents, occupancy, pruning, and their owner."""
