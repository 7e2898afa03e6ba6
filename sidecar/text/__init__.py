"""Text handling without I/O: documents, positions, edits, split points, outlines, globs and
escaping.
"""
