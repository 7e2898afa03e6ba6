"""Standard output and standard error as every verb uses them."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import NoReturn

NAME = "token-sidecar"
"""Before all that is told on standard error."""


def forgive() -> None:
    """Let no character end a command: a console of few characters is shown escapes for others."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def echo(text: str, *, err: bool = False) -> None:
    """Print a text fit to be printed, at once; where there is no room for it, end with 2."""
    stream = sys.stderr if err else sys.stdout
    if stream is not None:  # as under pythonw
        try:
            stream.write(f"{text}\n")
            stream.flush()
        except OSError as error:
            if err or error.errno != errno.ENOSPC:
                raise
            _no_room(error)


def _no_room(error: OSError) -> NoReturn:
    """End: what could not be printed is dropped, or it would be tried again at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    echo(f"{NAME}: standard output cannot be written: {error.strerror}", err=True)
    sys.exit(2)
