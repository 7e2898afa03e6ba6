"""Decompresses zstd data, such as agents' old sessions."""

from __future__ import annotations

import os
import sys
from typing import IO, cast

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd


MAX_BYTES = 512 << 20
"""Maximum decompressed size in bytes. Without a limit, 40 KB of input can expand to a gigabyte."""
_WINDOW_LOG = 26  # a window of 64 MB; compressors use at most 8 MB by default


class _DecompressedFile(zstd.ZstdFile):
    """A file that is decompressed as it is read. Raises OSError if the data is corrupt."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})
        self._file = file

    def read(self, size: int | None = -1) -> bytes:
        try:
            data = super().read(size)
            if self.tell() > MAX_BYTES:
                raise OSError("the decompressed file is too large")
            return data
        except (EOFError, zstd.ZstdError) as error:
            raise OSError("corrupt zstd data") from error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        try:
            return super().seek(offset, whence)
        except (EOFError, zstd.ZstdError) as error:
            raise OSError("corrupt zstd data") from error

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._file.close()


def open_decompressed(file: IO[bytes]) -> IO[bytes]:
    """Open a compressed file for reading. Closing the returned file also closes `file`."""
    return cast("IO[bytes]", _DecompressedFile(file))


def decompress(data: bytes, most: int) -> bytes:
    """Decompress data to at most `most` bytes. Raises OSError if the data is corrupt."""
    try:
        return zstd.ZstdDecompressor().decompress(data, max_length=most)
    except zstd.ZstdError as error:
        raise OSError("corrupt zstd data") from error
