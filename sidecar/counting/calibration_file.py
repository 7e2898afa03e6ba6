"""Calibrations on disk, in the user's state folder. Blocking; the only I/O of calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sidecar import typed
from sidecar.config.private import make_folder, set_aside, write
from sidecar.counting.calibration import Calibrations

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "calibration.json"
_MOST_BYTES = 4 * 1024 * 1024


def load(folder: Path) -> Calibrations:
    """Return what earlier runs learned; empty where the file is missing. Never raises.

    A damaged file is set aside.
    """
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            data = typed.decode(file.read(_MOST_BYTES), dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        set_aside(path, "it holds no calibration")
    except OSError:
        pass
    else:
        return Calibrations.from_dict(data)
    return Calibrations()


def save(folder: Path, calibrations: Calibrations) -> bool:
    """Write everything learned, on top of what other processes have written meanwhile.

    Returns:
        Whether other processes had written anything new, which is taken over.

    Raises:
        OSError: The file cannot be written.
    """
    taken = calibrations.take(load(folder))
    make_folder(folder)
    entries, number = calibrations.snapshot()
    write(folder / FILE_NAME, msgspec.json.format(msgspec.json.encode(entries), indent=1))
    calibrations.mark_written(number)
    return taken
