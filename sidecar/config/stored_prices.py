"""The file of the price list that `cost update-prices` has stored. Blocking."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeAlias

from sidecar.config.private import set_aside

logger = logging.getLogger(__name__)

STORED_LIST = "prices.json"
"""Its name in the state folder."""

ListFile: TypeAlias = Path | None
"""None: only the list of the package is used."""


def version(file: ListFile) -> int:
    """Another number when it is another list."""
    try:
        return file.stat().st_mtime_ns if file else 0
    except OSError:
        return 0


def read(file: ListFile) -> bytes | None:
    """What it holds; None where there is none, or, logged, where it cannot be read."""
    try:
        return file.read_bytes() if file else None
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("the price list %s cannot be read: %s", file, error.strerror)
        return None


def refuse(file: ListFile, reason: str) -> None:
    """Set one aside that cannot be used, and log why."""
    if file is not None:
        set_aside(file, f"{reason}; fetch it again with `token-sidecar cost update-prices`")
