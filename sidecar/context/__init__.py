"""Keeps conversations, computes how full their context windows are, and frees space in them."""
