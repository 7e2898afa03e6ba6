"""Zstandard, which some agents compress old sessions with: Python's own from 3.14 on."""

from __future__ import annotations

import os
import sys
from typing import IO, cast

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd


MAX_BYTES = 512 << 20
"""Of a file once decompressed: 40 KB of zstd can hold a gigabyte."""
_CHUNK = 1 << 20
_WINDOW_LOG = 26  # of the 64 MB that a frame may ask for; zstd itself writes 8 MB at most, unasked


class _Reading(zstd.ZstdFile):
    """The plain bytes of a compressed file; its damage is an OSError, as any fault of a file."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})
        self._file = file

    def read(self, size: int | None = -1) -> bytes:
        try:
            data = super().read(size)
            if self.tell() > MAX_BYTES:
                raise OSError("too large a file once decompressed")
            return data
        except (EOFError, zstd.ZstdError) as error:
            raise OSError("damaged zstd data") from error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            while self.read(_CHUNK):  # as far as `MAX_BYTES` allow
                pass
            offset, whence = self.tell() + offset, os.SEEK_SET
        return super().seek(offset, whence)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._file.close()


def open_decompressed(file: IO[bytes]) -> IO[bytes]:
    """A compressed file's plain bytes; closing it closes `file`."""
    return cast("IO[bytes]", _Reading(file))


def decompress(data: bytes, most: int) -> bytes:
    """Compressed bytes as they were, `most` of them at most. Raises OSError where damaged."""
    try:
        return zstd.ZstdDecompressor().decompress(data, max_length=most)
    except zstd.ZstdError as error:
        raise OSError("damaged zstd data") from error
