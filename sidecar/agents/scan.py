"""Searching lines by bytes, before anything is decoded. Pure."""

from __future__ import annotations

from collections.abc import Iterator


def lines_with(data: bytes, needle: bytes) -> Iterator[bytes]:
    """The lines of `data`, which ends with a line feed, that hold `needle`."""
    find, rfind = data.find, data.rfind
    at = find(needle)
    while at >= 0:
        end = find(b"\n", at)
        yield data[rfind(b"\n", 0, at) + 1 : end]
        at = find(needle, end)
