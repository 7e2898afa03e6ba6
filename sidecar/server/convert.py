"""Between lsprotocol's positions and ours."""

from __future__ import annotations

from lsprotocol import types

from sidecar.text.positions import Position, Range


def to_range(span: types.Range) -> Range:
    """Ours from LSP's."""
    start, end = span.start, span.end
    return Range(Position(start.line, start.character), Position(end.line, end.character))


def from_position(position: Position) -> types.Position:
    """LSP's from ours."""
    return types.Position(position.line, position.character)


def from_range(span: Range) -> types.Range:
    """LSP's from ours."""
    return types.Range(from_position(span.start), from_position(span.end))
