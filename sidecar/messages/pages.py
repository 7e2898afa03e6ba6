"""How many pages a PDF has, from its first and last bytes. Nothing is fetched or drawn.

The tree of pages says it: `/Type /Pages … /Count N`, whose root has the greatest N. It stands in
plain objects, or in compressed streams of objects; a file made for the web says it in its first.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from itertools import chain, islice

_MOST_PAGES = 100_000
_MOST_STREAMS = 64
_MOST_INFLATED = 1 << 20
"""Bytes of one stream of objects."""
_AROUND = 65_536
"""Bytes before and after `/Type /Pages` that its object is looked for in."""
_AROUND_PACKED = 4_096
"""The same in a stream, where nothing marks the ends of objects."""
_MOST_NODES = 256
"""Of the tree, looked at in a part."""
_MOST_INFLATED_IN_ALL = 8 << 20

_TREE = re.compile(rb"/Type\s*/Pages\b")
_COUNT = re.compile(rb"/Count\s+(\d{1,6})\b")
_DICTIONARY = re.compile(rb"<<[^<>]*>>")
_HEXADECIMAL = re.compile(rb"(?<!<)<[0-9A-Fa-f\s]*>(?!>)")
_DEEPEST = 8
_LINEARIZED = re.compile(rb"/Linearized\b[^>]{0,200}?/N\s+(\d{1,6})\b")
_STREAM = re.compile(rb"/Type\s*/ObjStm\b.{0,512}?stream\r?\n", re.DOTALL)


def pages_in(parts: tuple[bytes, ...]) -> int | None:
    """The pages of a PDF of which these parts are known, the first being how it begins.

    None where it is no PDF or they do not show it. Never raises.
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
    """Where a part and what is packed in it speak of the tree."""
    for objects in chain((part,), _packed(part)):
        yield from ((objects, node) for node in _TREE.finditer(objects))


def _counts(objects: bytes, node: re.Match[bytes]) -> Iterator[int]:
    """The numbers of pages that a node of the tree gives."""
    start, end = _bounds(objects, node.start(), node.end())
    before = _without_inner(objects[start : node.start()])
    after = _without_inner(objects[node.end() : end])
    within = before[before.rfind(b"<<") + 1 :] + b" " + after.partition(b">>")[0]
    return (int(one[1]) for one in _COUNT.finditer(within))


def _bounds(objects: bytes, start: int, end: int) -> tuple[int, int]:
    """Where the object begins and ends that holds what lies between `start` and `end`."""
    first = objects.rfind(b"obj", max(0, start - _AROUND), start)
    last = objects.find(b"endobj", end, end + _AROUND)
    return (
        first if first >= 0 else max(0, start - _AROUND_PACKED),
        last if last >= 0 else end + _AROUND_PACKED,
    )


def _without_inner(part: bytes) -> bytes:
    """A part of a dictionary without those that it holds, which may have counts of their own."""
    part = _HEXADECIMAL.sub(b"", part)
    for _ in range(_DEEPEST):
        part, removed = _DICTIONARY.subn(b"", part)
        if not removed:
            break
    return part


def _packed(part: bytes) -> Iterator[bytes]:
    """What streams of objects hold."""
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
