"""How long audio or video in a message lasts, from its first and last bytes. Nothing is fetched."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

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


def clip_of(block: Mapping[str, Any]) -> Clip:
    """What a block of a file holds. Never raises.

    The length is that of `videoMetadata` where the block cuts a piece out, else what the data says:
    WAV, MP4 and its kin, MP3 of one bitrate.
    """
    source = _source(block)
    media, cut = _media(block, source), _mapping(block, "videoMetadata", "video_metadata")
    start, end = (_seconds(cut.get(name)) for name in ("startOffset", "endOffset"))
    seconds = end - (start or 0.0) if end is not None else None
    if seconds is None and media != "document":
        seconds = _length(next((source[key] for key in _DATA if key in source), None))
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


def _length(data: object) -> float | None:
    if not isinstance(data, str):
        return None
    text = data.partition(",")[2] if data.startswith("data:") else data
    whole = len(text) // 4 * 4
    try:
        head = base64.b64decode(text[: min(whole, _ENDS_CHARACTERS)])
        tail = base64.b64decode(text[max(0, whole - _ENDS_CHARACTERS) : whole])
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
