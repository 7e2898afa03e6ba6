"""Documents as lines: LSP positions, edits, safe split points, globs. Pure: no I/O;
token counts are remembered here, and made elsewhere.
"""
