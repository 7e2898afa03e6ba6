"""What the command line prints for people and for CI: each line passes here, and is only text."""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from sidecar.text.printable import json_text, printable, printable_lines
from sidecar.text.tables import EIGHTHS

if TYPE_CHECKING:
    import click

    from sidecar.config.options import Problem

T = TypeVar("T")

NAME = "token-sidecar"
"""Begins every line on standard error."""
LONG_WORK = 8_000_000
"""Bytes from which on a terminal is shown how far the work has come."""


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """As `warn` has it: names that others chose stay text."""
        return f"{NAME}: {printable_lines(super().format(record))}"


def prepare() -> None:
    """Set up standard output, standard error and the log of last resort for a command."""
    if logging.lastResort:
        logging.lastResort.setFormatter(_Formatter())
    for stream in (sys.stdout, sys.stderr):
        escape_unencodable(stream)


def escape_unencodable(stream: object) -> None:
    """Print a character that the console's encoding lacks as an escape, instead of failing."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def echo(text: str, *, err: bool = False) -> None:
    """Print a text that is already safe to print, and flush. Exits with 2 when the disk is full."""
    stream = sys.stderr if err else sys.stdout
    if stream is not None:  # as under pythonw
        try:
            stream.write(f"{text}\n")
            stream.flush()
        except OSError as error:
            if err or error.errno != errno.ENOSPC:
                raise
            _exit_on_full_disk(error)


def _exit_on_full_disk(error: OSError) -> NoReturn:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # or Python would try the buffered text again at exit
    os.close(nowhere)
    echo(f"{NAME}: standard output cannot be written: {error.strerror}", err=True)
    sys.exit(2)


def say(*lines: str, err: bool = False) -> None:
    """Print lines, each of which stays one."""
    echo(drawable("\n".join(map(printable, lines))), err=err)


def say_styled(line: str) -> None:
    """Print a line whose colours are meant; all else in it is only text."""
    parts = _STYLE.split(line)
    text = (part if index % 2 else printable(part) for index, part in enumerate(parts))
    echo("".join(text))


_STYLE = re.compile(r"(\x1b\[[0-9;]{0,64}m)")


def warn(*lines: str) -> None:
    """Print lines on standard error, each with the program's name."""
    for line in lines:
        echo(warning(line), err=True)


def warning(line: str) -> str:
    """A line with the program's name, as it is printed."""
    return printable(f"{NAME}: {line}")


def warn_of(problems: Iterable[Problem]) -> bool:
    """Print what is wrong in the configuration; whether some of it is an error (exit 2)."""
    lines = [(str(problem), problem.severity == "error") for problem in problems]
    warn(*(text for text, _ in lines))
    return any(error for _, error in lines)


def refuse(refused: click.ClickException, _: object = None) -> None:
    """Print what a command refuses as `warn` does, and how it is used where that was wrong."""
    import click

    if isinstance(refused, click.UsageError) and refused.ctx:
        usage, command = refused.ctx.get_usage(), refused.ctx.command_path
        say(*usage.splitlines(), f"Try '{command} --help' for help.", "", err=True)
    warn(refused.format_message())


def as_utf8(text: str) -> str:
    """A text that can be encoded: names and files may hold bytes that are no UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def say_json(value: object) -> None:
    """Print a value as one line of JSON."""
    echo(json_text(value))


_ASCII = str.maketrans(
    {**dict.fromkeys(EIGHTHS.strip(" █"), ""), "█": "#", "░": ".", "●": "*", "≥": ">="}
)


def drawable(text: str) -> str:
    """Return the text with bars and marks in ASCII if standard output cannot encode them."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return text.translate(_ASCII)
    return text


def with_progress(work: Iterable[T], steps: int, size: int) -> Iterable[T]:
    """The same; where it is about many bytes, a terminal is shown how far it has come."""
    if not sys.stderr.isatty() or size < LONG_WORK:
        return work
    from rich.console import Console
    from rich.progress import track

    return track(work, "Counting", steps, console=Console(stderr=True), transient=True)
