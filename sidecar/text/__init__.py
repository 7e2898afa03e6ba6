"""Documents: positions, edits, safe split points; outlines, globs and text for display. Pure."""
