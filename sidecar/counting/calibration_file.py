"""Reads and writes the calibration file in the state folder. All functions block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sidecar import typed
from sidecar.config.private_files import make_folder, set_aside, write
from sidecar.counting.calibration import Calibrations

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "calibration.json"
_MAX_BYTES = 4 * 1024 * 1024


def load(folder: Path) -> Calibrations:
    """Return the calibrations in the file, or empty calibrations if there is no file. Never raises.

    A damaged file is renamed.
    """
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            data = typed.decode(file.read(_MAX_BYTES), dict[str, Any])
    except msgspec.DecodeError:
        set_aside(path, "it contains no calibrations")
    except OSError:
        pass
    else:
        return Calibrations.from_dict(data)
    return Calibrations()


def save(folder: Path, calibrations: Calibrations) -> bool:
    """Merge the calibrations with those that other processes have written, and write the result.

    Returns:
        Whether the file contained changes by other processes.

    Raises:
        OSError: The file cannot be written.
    """
    has_changed = calibrations.merge(load(folder))
    make_folder(folder)
    data, version = msgspec.json.encode(calibrations.to_dict()), calibrations.version
    write(folder / FILE_NAME, msgspec.json.format(data, indent=1))
    calibrations.mark_written(version)
    return has_changed
