"""The size of a picture in a message, from its first bytes. Nothing is fetched."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from io import BytesIO
from typing import Any

_HEAD_CHARACTERS = 262_144
"""Of base64 that is looked at: a JPEG may carry a large preview before its size."""

Size = tuple[int, int]


def size_of(source: Any) -> Size | None:
    """Width and height of a picture in any vendor's block, or None. Never raises.

    Read from `width` and `height` where the block has them, else from the data itself (as base64 or
    data URL, in any format that imagesize knows). Nothing is fetched.
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
    if data[:1] == b"<":  # SVG: no vendor takes it, and it would be parsed as XML
        return None
    import imagesize  # 40 ms, which only messages with pictures need wait for

    try:
        width, height = imagesize.get(BytesIO(data))
    except Exception:  # the library raises various errors for damaged data
        return None
    return (int(width), int(height)) if min(width, height) > 0 else None
