"""Calibrations on disk, in the user's state folder: the only I/O of calibration. Blocking."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import msgspec

from sidecar.counting.calibration import Calibrations

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "calibration.json"
_MOST_BYTES = 4 * 1024 * 1024


def load(folder: Path) -> Calibrations:
    """What earlier runs have learned; nothing where the file is missing or damaged.

    Never raises.
    """
    try:
        with (folder / FILE_NAME).open("rb") as file:
            data = file.read(_MOST_BYTES)
        return Calibrations.from_dict(msgspec.json.decode(data))
    except (OSError, msgspec.DecodeError):
        return Calibrations()


def save(folder: Path, calibrations: Calibrations) -> None:
    """Write all that was learned, and what other processes have learned meanwhile of other models.

    Written aside and moved into place, readable by the user alone. Raises OSError.
    """
    calibrations.take(load(folder))
    folder.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode(calibrations.to_dict()), indent=1)
    handle, name = tempfile.mkstemp(prefix=f".{FILE_NAME}.", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, folder / FILE_NAME)
    except BaseException:
        os.unlink(name)
        raise
