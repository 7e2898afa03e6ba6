"""Between lsprotocol's positions and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

if TYPE_CHECKING:
    from sidecar.text.positions import Position


def to_lines(span: types.Range) -> tuple[int, int]:
    """The first and the last line of a range, whichever of its ends is the first."""
    lines = span.start.line, span.end.line
    return min(lines), max(lines)


def from_position(position: Position) -> types.Position:
    """LSP's from ours."""
    return types.Position(position.line, position.character)
