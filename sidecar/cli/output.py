"""What the command line prints for people and for CI: each line passes here, and is only text."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from sidecar.cli.streams import NAME, echo, forgive
from sidecar.text.printable import json_text, printable, printable_lines

if TYPE_CHECKING:
    import click

    from sidecar.config.options import Problem

T = TypeVar("T")

LONG_WORK = 8_000_000
"""Bytes from which on a terminal is shown how far the work has come."""


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """As `warn` has it: names that others chose stay text."""
        return f"{NAME}: {printable_lines(super().format(record))}"


def prepare() -> None:
    """Let no character end a command, as `forgive` says.

    What no verb has set up a log for is told as `warn` tells.
    """
    if logging.lastResort:
        logging.lastResort.setFormatter(_Formatter())
    forgive()


def say(*lines: str, err: bool = False) -> None:
    """Print lines, each of which stays one."""
    echo("\n".join(map(printable, lines)), err=err)


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


def encodable(text: str) -> bool:
    """Whether standard output has all of these characters."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def with_progress(work: Iterable[T], steps: int, size: int) -> Iterable[T]:
    """The same; where it is about many bytes, a terminal is shown how far it has come."""
    if not sys.stderr.isatty() or size < LONG_WORK:
        return work
    from rich.console import Console
    from rich.progress import track

    return track(work, "Counting", steps, console=Console(stderr=True), transient=True)
