"""Options shared by commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def workspace_option(about: str) -> Callable[[Any], Any]:
    """Return the option `--workspace DIR`, an existing folder; the current one by default."""
    return click.option(
        "--workspace",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=Path(),
        metavar="DIR",
        help=f"{about} (default: the current folder).",
    )
