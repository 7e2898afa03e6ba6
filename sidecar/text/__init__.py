"""Documents as lines: LSP positions, edits, safe split points, globs.

Pure: no I/O. Token counts are remembered here, and made elsewhere.
"""
