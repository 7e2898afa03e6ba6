"""Generates session files in the formats of coding agents, with known numbers of tokens."""
