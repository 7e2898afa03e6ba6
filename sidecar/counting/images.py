"""What pictures cost, by the vendors' published formulas, and their sizes from their first bytes.

Formulas: OpenAI "Images and vision" (tiles of 512, or patches of 32), Anthropic "Vision"
(width * height / 750), Gemini "Understand and count tokens" (258 a tile of 768).
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Mapping
from typing import Any

import msgspec

UNKNOWN_SIZE = (1024, 1024)
"""What a picture whose size is not known is taken for; the count then says `estimate`."""

_HEAD_CHARACTERS = 262_144
"""Of base64 that is looked at: a JPEG may carry a large preview before it tells its size."""

Size = tuple[int, int]


class _Tiles(msgspec.Struct, frozen=True):
    base: int
    tile: int


class _Patches(msgspec.Struct, frozen=True):
    factor: float


_OPENAI: tuple[tuple[str, _Tiles | _Patches], ...] = (
    (r"gpt-5(\.\d)?-mini|gpt-4\.1-mini", _Patches(1.62)),
    (r"gpt-5(\.\d)?-nano|gpt-4\.1-nano", _Patches(2.46)),
    (r"o4-mini", _Patches(1.72)),
    (r"gpt-4o-mini", _Tiles(2833, 5667)),
    (r"gpt-5", _Tiles(70, 140)),
    (r"o[13](-|$)", _Tiles(75, 150)),
    (r"computer-use", _Tiles(65, 129)),
    (r"", _Tiles(85, 170)),  # gpt-4o, gpt-4.1, gpt-4.5 and what is not listed
)
_MAX_PATCHES = 1536


def image_tokens(bare: str, generation: str, size: Size | None, detail: str = "auto") -> int:
    """Tokens of one picture for a model; of a square of 1024 where its size is not known.

    `detail` is OpenAI's: `low` costs the base only.
    """
    width, height = (max(1, side) for side in size or UNKNOWN_SIZE)
    if generation.startswith("claude"):
        return _anthropic(width, height)
    if generation == "gemma":
        return _gemini(width, height)
    rule = next(rule for pattern, rule in _OPENAI if re.match(pattern, bare))
    if isinstance(rule, _Patches):
        return _patches(width, height, rule.factor)
    return rule.base if detail == "low" else _tiles(width, height, rule)


def _tiles(width: int, height: int, rule: _Tiles) -> int:
    """Within 2048 a side, the short side down to 768, then tiles of 512."""
    shrink = min(1.0, 2048 / max(width, height))
    shrink *= min(1.0, 768 / (min(width, height) * shrink))
    across = math.ceil(round(width * shrink, 6) / 512)
    down = math.ceil(round(height * shrink, 6) / 512)
    return rule.base + rule.tile * across * down


def _patches(width: int, height: int, factor: float) -> int:
    """Patches of 32, at most 1536 of them."""
    patches = math.ceil(width / 32) * math.ceil(height / 32)
    return math.ceil(min(patches, _MAX_PATCHES) * factor)


def _anthropic(width: int, height: int) -> int:
    """Within 1568 a side and about 1.15 megapixels: width * height / 750."""
    shrink = min(1.0, 1568 / max(width, height))
    pixels = width * height * shrink * shrink
    return math.ceil(min(pixels, 1_200_000) / 750)


def _gemini(width: int, height: int) -> int:
    """258 up to 384 a side, else 258 for each tile of 768."""
    if max(width, height) <= 384:
        return 258
    return 258 * math.ceil(width / 768) * math.ceil(height / 768)


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
