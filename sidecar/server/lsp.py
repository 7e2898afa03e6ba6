"""Converts positions to and from LSP's types, for several features."""

from __future__ import annotations

from lsprotocol import types

from sidecar.text.positions import Position

DIAGNOSTICS_SOURCE = "token-sidecar"

LINE_END = 2**31 - 1  # LSP clamps positions to the end of the line


def find_line_span(span: types.Range) -> tuple[int, int]:
    """Return the first and last line of a range, even if start and end are swapped."""
    lines = span.start.line, span.end.line
    return min(lines), max(lines)


def from_position(position: Position) -> types.Position:
    return types.Position(position.line, position.character)
