"""Conversion between lsprotocol's positions and this project's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

if TYPE_CHECKING:
    from sidecar.text.positions import Position


def to_lines(span: types.Range) -> tuple[int, int]:
    """Return the first and last line of a range, whose ends may be reversed."""
    lines = span.start.line, span.end.line
    return min(lines), max(lines)


def from_position(position: Position) -> types.Position:
    """Convert a position to LSP's."""
    return types.Position(position.line, position.character)
