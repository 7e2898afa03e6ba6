"""Converts between lsprotocol's positions and this project's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

if TYPE_CHECKING:
    from sidecar.text.positions import Position


def to_lines(span: types.Range) -> tuple[int, int]:
    """Return the first and last line of a range, even if its ends are reversed."""
    lines = span.start.line, span.end.line
    return min(lines), max(lines)


def from_position(position: Position) -> types.Position:
    return types.Position(position.line, position.character)
