"""The conversation: what it holds, how full its window is, and how to make room in it."""
