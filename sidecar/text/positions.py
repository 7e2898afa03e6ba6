"""Positions and ranges as LSP means them, in the encoding that the client negotiated."""

from __future__ import annotations

from typing import Literal

import msgspec

Encoding = Literal["utf-8", "utf-16", "utf-32"]


class Position(msgspec.Struct, frozen=True, order=True):
    """A zero-based line, and an offset in it counted in code units of the negotiated encoding."""

    line: int
    character: int


class Range(msgspec.Struct, frozen=True):
    """A half-open span of a document: `start` is in it, `end` is the first position after it."""

    start: Position
    end: Position
