"""Reads the price list that `cost update-prices` saved. All functions block."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeAlias

from sidecar.config.safe_files import FileStamp, set_aside, stamp_of

logger = logging.getLogger(__name__)

STORED_LIST = "prices.json"
"""The price list's file name in the state folder."""

ListFile: TypeAlias = Path | None
"""The saved price list's path, or None to use only the bundled list."""


def version(file: ListFile) -> FileStamp | None:
    """Return a value that changes whenever the file changes."""
    return stamp_of(file) if file else None


def read(file: ListFile) -> bytes | None:
    """Return the file's contents, or None if it is missing or cannot be read."""
    try:
        return file.read_bytes() if file else None
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("cannot read the price list %s: %s", file, error.strerror)
        return None


def refuse(file: ListFile, reason: str) -> None:
    """Rename an unusable file, and log the reason."""
    if file is not None:
        set_aside(file, f"{reason}; download it again with `token-sidecar cost update-prices`")
