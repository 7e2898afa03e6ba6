"""The size of a picture in a message, from its first bytes. Nothing is fetched."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from typing import Any

_HEAD_CHARACTERS = 262_144
"""Of base64 that is looked at: a JPEG may carry a large preview before its size."""

Size = tuple[int, int]


def size_of(source: Any) -> Size | None:
    """Width and height of a picture in any vendor's block, or None. Never raises.

    Read from `width` and `height` where the block has them, else from the data itself (PNG, GIF,
    JPEG, WebP as base64 or data URL). Nothing is fetched.
    """
    if isinstance(source, Mapping):
        width, height = source.get("width"), source.get("height")
        if isinstance(width, int) and isinstance(height, int) and min(width, height) > 0:
            return width, height
        inner = ("source", "image_url", "url", "data", "bytes", "inlineData", "inline_data")
        found = (size_of(source[key]) for key in inner if key in source)
        return next((size for size in found if size), None)
    if isinstance(source, str):
        return _size_of_text(source)
    return None


def _size_of_text(text: str) -> Size | None:
    if text.startswith("data:"):
        text = text[: _HEAD_CHARACTERS + 64].partition(",")[2]
    elif "://" in text[:16]:
        return None
    head = text[:_HEAD_CHARACTERS]
    try:
        data = base64.b64decode(head[: len(head) // 4 * 4])
    except (binascii.Error, ValueError):
        return None
    return _size_of_bytes(data)


def _size_of_bytes(data: bytes) -> Size | None:
    try:
        if data[:8] == b"\x89PNG\r\n\x1a\n":
            return _positive(struct.unpack(">II", data[16:24]))
        if data[:6] in (b"GIF87a", b"GIF89a"):
            return _positive(struct.unpack("<HH", data[6:10]))
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp(data)
        if data[:2] == b"\xff\xd8":
            return _jpeg(data)
    except (struct.error, IndexError):
        pass
    return None


def _positive(size: tuple[Any, ...]) -> Size | None:
    width, height = size
    return (width, height) if width and height else None


def _webp(data: bytes) -> Size | None:
    kind = data[12:16]
    if kind == b"VP8X":
        width = int.from_bytes(data[24:27], "little") + 1
        return width, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack("<HH", data[26:30])
    return _positive((width & 0x3FFF, height & 0x3FFF))


def _jpeg(data: bytes) -> Size | None:
    """From the frame header, past the segments before it."""
    at = 2
    while at + 9 < len(data):
        if data[at] != 0xFF:
            at += 1
            continue
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return _positive((width, height))
        alone = marker in (0x01, 0xFF) or 0xD0 <= marker <= 0xD8
        at += 2 if alone else 2 + max(2, struct.unpack(">H", data[at + 2 : at + 4])[0])
    return None
