"""Standard output and standard error as every verb uses them."""

from __future__ import annotations

import io
import sys


def forgive() -> None:
    """Let no character end a command: a console of few characters is shown escapes for others."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def echo(text: str, *, err: bool = False) -> None:
    """Print a text that is fit to be printed, at once."""
    stream = sys.stderr if err else sys.stdout
    if stream is not None:  # as under pythonw
        stream.write(f"{text}\n")
        stream.flush()
