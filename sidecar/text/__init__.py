"""Documents as lines: LSP positions, edits, safe split points. Pure: no I/O, no token counts."""
