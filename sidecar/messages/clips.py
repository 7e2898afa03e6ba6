"""How long audio or video in a message lasts, from its first and last bytes. Nothing is fetched.

Of a document, how many pages it has.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from sidecar.messages.pages import pages_in

Media: TypeAlias = Literal["audio", "video", "document"]

_ENDS_CHARACTERS = 262_144
"""Of base64 that is looked at, at either end: an MP4 may hold its length last."""
_KBPS = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0)
_OFFSET = re.compile(r"(\d+(?:\.\d+)?)s")


class Clip(NamedTuple):
    """Audio, video or a document in a message."""

    media: Media
    seconds: float | None
    """None where it is not known."""
    fps: float = 1.0
    """Frames of a second that are looked at."""
    pages: int | None = None
    """Of a document; None where they are not known."""


def clip_of(block: Mapping[str, Any]) -> Clip:
    """What a block of a file holds. Never raises.

    The length is that of `videoMetadata` where the block cuts a piece out, else what the data says:
    WAV, MP4 and its kin, MP3 of one bitrate.
    """
    source = _source(block)
    media, cut = _media(block, source), _mapping(block, "videoMetadata", "video_metadata")
    start, end = (_seconds(cut.get(name)) for name in ("startOffset", "endOffset"))
    seconds = end - (start or 0.0) if end is not None else None
    data = next((source[key] for key in _DATA if key in source), None)
    if media == "document":
        return Clip(media, None, pages=_pages(data))
    if seconds is None:
        seconds = _length(data)
    fps = cut.get("fps")
    return Clip(media, seconds, float(fps) if isinstance(fps, int | float) and fps > 0 else 1.0)


_DATA = ("data", "bytes", "file_data", "fileData")
_SOURCES = ("input_audio", "inlineData", "inline_data", "fileData", "file_data", "source", "file")


def _source(block: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(block, *_SOURCES) or block


def _mapping(block: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return next((block[name] for name in names if isinstance(block.get(name), Mapping)), {})


def _media(block: Mapping[str, Any], source: Mapping[str, Any]) -> Media:
    names = ("mimeType", "mime_type", "mediaType", "media_type", "type")
    described = " ".join(
        str(one.get(name) or "") for one in (source, block) for name in names
    ).lower()
    if "audio" in described:
        return "audio"
    return "video" if "video" in described else "document"


def _seconds(offset: object) -> float | None:
    if isinstance(offset, int | float) and not isinstance(offset, bool):
        return float(offset)
    found = _OFFSET.fullmatch(offset) if isinstance(offset, str) else None
    return float(found[1]) if found else None


def _ends(text: str) -> tuple[bytes, bytes]:
    """The first and last bytes. Raises binascii.Error, ValueError."""
    whole = len(text) // 4 * 4
    head = base64.b64decode(text[: min(whole, _ENDS_CHARACTERS)])
    return head, base64.b64decode(text[max(0, whole - _ENDS_CHARACTERS) : whole])


def _encoded(data: object) -> str:
    """Base64 without what a data URL puts before it; "" of anything else."""
    text = data if isinstance(data, str) else ""
    return text.partition(",")[2] if text.startswith("data:") else text


def _pages(data: object) -> int | None:
    try:
        return pages_in(_ends(_encoded(data)))
    except (binascii.Error, ValueError):
        return None


def _length(data: object) -> float | None:
    text = _encoded(data)
    whole = len(text) // 4 * 4
    try:
        head, tail = _ends(text)
        found = (
            _wav(head)
            or _mp4(head)
            or _mp4(tail)
            or _mp3(head, whole // 4 * 3 - text[-2:].count("="))
        )
    except (binascii.Error, ValueError, struct.error, IndexError, ZeroDivisionError):
        return None
    return found if found and found > 0 else None


def _wav(head: bytes) -> float | None:
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    rate, at = 0, 12
    while at + 8 <= len(head):
        kind, size = head[at : at + 4], int.from_bytes(head[at + 4 : at + 8], "little")
        if kind == b"fmt ":
            rate = int.from_bytes(head[at + 16 : at + 20], "little")
        if kind == b"data":
            return size / rate
        at += 8 + size + size % 2
    return None


def _mp4(part: bytes) -> float | None:
    at = part.find(b"mvhd")
    if at < 0:
        return None
    if part[at + 4]:  # version 1: times of 64 bits
        scale, length = struct.unpack_from(">IQ", part, at + 24)
    else:
        scale, length = struct.unpack_from(">II", part, at + 16)
    return float(length / scale)


def _mp3(head: bytes, size: int) -> float | None:
    """By the bitrate of the first frame, of MPEG 1 layer 3."""
    at = 0
    if head[:3] == b"ID3":
        at = 10 + sum((head[6 + n] & 0x7F) << 7 * (3 - n) for n in range(4))
    if head[at] != 0xFF or head[at + 1] & 0xFE != 0xFA:
        return None
    return (size - at) * 8 / (1000 * _KBPS[head[at + 2] >> 4])
