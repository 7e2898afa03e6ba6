"""Reads the size of pictures, audio, video and PDFs in messages. Nothing is downloaded.

The size of a picture is its width and height. The size of audio or video is its length in seconds,
and the size of a PDF is its number of pages. Only the first and last bytes of the data are read.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import chain, islice
from typing import Any, Literal, NamedTuple, TypeAlias

_HEAD_CHARACTERS = 262_144
"""Maximum number of base64 characters to read from a picture. In a JPEG, a large preview may
precede the size.
"""

Size = tuple[int, int]


def size_of(source: Any) -> Size | None:
    """Return the width and height of the picture in any vendor's block, or None. Never raises.

    If the block has `width` and `height`, they take precedence over the data. The data is base64 or
    a data URL, in any format that imagesize supports.
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
    if data[:1] == b"<":  # vendors refuse SVG, and imagesize would parse it as XML
        return None
    import imagesize  # takes 40 ms, so import it only when an image is needed

    try:
        width, height = imagesize.get(BytesIO(data))
    except Exception:  # the library raises various errors if the data is damaged
        return None
    return (int(width), int(height)) if min(width, height) > 0 else None


_MOST_PAGES = 100_000
_MOST_STREAMS = 64
_MOST_INFLATED = 1 << 20
"""Maximum number of bytes to decompress from an object stream."""
_AROUND = 65_536
"""Maximum distance in bytes between `/Type /Pages` and the start or end of its object."""
_AROUND_PACKED = 4_096
"""Number of bytes to search before or after `/Type /Pages` if no marker shows where its object
starts or ends. There are no markers in object streams.
"""
_MOST_NODES = 256
"""Maximum number of page tree nodes to read in each part of the file."""
_MOST_INFLATED_IN_ALL = 8 << 20

_TREE = re.compile(rb"/Type\s*/Pages\b")
_COUNT = re.compile(rb"/Count\s+(\d{1,6})\b")
_DICTIONARY = re.compile(rb"<<[^<>]*>>")
_HEXADECIMAL = re.compile(rb"(?<!<)<[0-9A-Fa-f\s]*>(?!>)")
_DEEPEST = 8
_LINEARIZED = re.compile(rb"/Linearized\b[^>]{0,200}?/N\s+(\d{1,6})\b")
_STREAM = re.compile(rb"/Type\s*/ObjStm\b.{0,512}?stream\r?\n", re.DOTALL)


def pages_in(parts: tuple[bytes, ...]) -> int | None:
    """Return the number of pages in a PDF, or None if unknown. Never raises.

    The page count is in the root of the page tree: the `/Type /Pages … /Count N` with the largest
    N. The page tree is in plain objects or in compressed object streams. If a file is optimized for
    the web, its first object also contains the page count.

    Args:
        parts: The known parts of the file. The first part is the beginning of the file.
    """
    if not parts[0].startswith(b"%PDF"):
        return None
    found = [int(one[1]) for one in _LINEARIZED.finditer(parts[0])]
    for part in parts:
        for objects, node in islice(_nodes(part), _MOST_NODES):
            found += _counts(objects, node)
    pages = max(found, default=0)
    return pages if 0 < pages <= _MOST_PAGES else None


def _nodes(part: bytes) -> Iterator[tuple[bytes, re.Match[bytes]]]:
    """Yield each node of the page tree in a part of the file, with the surrounding bytes."""
    for objects in chain((part,), _packed(part)):
        yield from ((objects, node) for node in _TREE.finditer(objects))


def _counts(objects: bytes, node: re.Match[bytes]) -> Iterator[int]:
    start, end = _bounds(objects, node.start(), node.end())
    before = _without_inner(objects[start : node.start()])
    after = _without_inner(objects[node.end() : end])
    within = before[before.rfind(b"<<") + 1 :] + b" " + after.partition(b">>")[0]
    return (int(one[1]) for one in _COUNT.finditer(within))


def _bounds(objects: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the start and end of the object that contains a match."""
    first = objects.rfind(b"obj", max(0, start - _AROUND), start)
    last = objects.find(b"endobj", end, end + _AROUND)
    return (
        first if first >= 0 else max(0, start - _AROUND_PACKED),
        last if last >= 0 else end + _AROUND_PACKED,
    )


def _without_inner(part: bytes) -> bytes:
    part = _HEXADECIMAL.sub(b"", part)
    for _ in range(_DEEPEST):
        part, removed = _DICTIONARY.subn(b"", part)
        if not removed:
            break
    return part


def _packed(part: bytes) -> Iterator[bytes]:
    left = _MOST_INFLATED_IN_ALL
    for one in islice(_STREAM.finditer(part), _MOST_STREAMS):
        if left <= 0:
            return
        try:
            objects = zlib.decompressobj().decompress(part[one.end() :], _MOST_INFLATED)
        except zlib.error:
            continue
        left -= len(objects)
        yield objects


Media: TypeAlias = Literal["audio", "video", "document"]

_ENDS_CHARACTERS = 262_144
"""Number of base64 characters to read from each end of a clip. In an MP4, the length may be at the
end.
"""
_MAX_SECONDS, _MAX_FPS = 1_000_000, 1_000
"""Limits for plausible values. Longer clips and higher frame rates are treated as unknown."""
_KBPS = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0)
_OFFSET = re.compile(r"(\d+(?:\.\d+)?)s")


class Clip(NamedTuple):
    """An audio clip, a video or a document in a message."""

    media: Media
    seconds: float | None
    fps: float = 1.0
    """Frames per second that the model reads from a video."""
    pages: int | None = None


def clip_of(block: Mapping[str, Any]) -> Clip:
    """Return the kind and length of a file block. Never raises.

    The length is read from the data (WAV, MP4, and MP3 with a constant bitrate). If `videoMetadata`
    selects a part of a video, the length of that part is returned.
    """
    source = _mapping(block, *_SOURCES) or block
    media, cut = _media(block, source), _mapping(block, "videoMetadata", "video_metadata")
    start, end = (_seconds(cut.get(name)) for name in ("startOffset", "endOffset"))
    data = next((source[key] for key in _DATA if key in source), None)
    if media == "document":
        return Clip(media, None, pages=_pages(data))
    seconds = ((end if end is not None else _length(data)) or 0.0) - (start or 0.0)
    fps = cut.get("fps")
    fps = float(fps) if isinstance(fps, int | float) and 0 < fps <= _MAX_FPS else 1.0
    return Clip(media, seconds if seconds > 0 else None, fps)


_DATA = ("data", "bytes", "file_data", "fileData")
_SOURCES = ("input_audio", "inlineData", "inline_data", "fileData", "file_data", "source", "file")


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
    if isinstance(offset, str):
        found = _OFFSET.fullmatch(offset)
        offset = float(found[1]) if found else None
    if isinstance(offset, bool) or not isinstance(offset, int | float):
        return None
    return float(offset) if 0 <= offset <= _MAX_SECONDS else None


def _decode_ends(text: str) -> tuple[bytes, bytes]:
    """Decode the beginning and the end of a base64 string. Raises binascii.Error or ValueError."""
    whole = len(text) // 4 * 4
    head = base64.b64decode(text[: min(whole, _ENDS_CHARACTERS)])
    return head, base64.b64decode(text[max(0, whole - _ENDS_CHARACTERS) : whole])


def _encoded(data: object) -> str:
    text = data if isinstance(data, str) else ""
    return text.partition(",")[2] if text.startswith("data:") else text


def _pages(data: object) -> int | None:
    try:
        return pages_in(_decode_ends(_encoded(data)))
    except (binascii.Error, ValueError):
        return None


def _length(data: object) -> float | None:
    text = _encoded(data)
    whole = len(text) // 4 * 4
    try:
        head, tail = _decode_ends(text)
        found = (
            _wav(head)
            or _mp4(head)
            or _mp4(tail)
            or _mp3(head, whole // 4 * 3 - text[-2:].count("="))
        )
    except (binascii.Error, ValueError, struct.error, IndexError, ZeroDivisionError):
        return None
    return found if found and 0 < found <= _MAX_SECONDS else None


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
    if part[at + 4]:  # version 1 of this header contains 64-bit times
        scale, length = struct.unpack_from(">IQ", part, at + 24)
    else:
        scale, length = struct.unpack_from(">II", part, at + 16)
    return float(length / scale)


def _mp3(head: bytes, size: int) -> float | None:
    at = 0
    if head[:3] == b"ID3":
        at = 10 + sum((head[6 + n] & 0x7F) << 7 * (3 - n) for n in range(4))
    if head[at] != 0xFF or head[at + 1] & 0xFE != 0xFA:
        return None
    return (size - at) * 8 / (1000 * _KBPS[head[at + 2] >> 4])
