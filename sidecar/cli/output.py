"""Prints the output of commands, and escapes control characters in names and paths."""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

import click

from sidecar.errors import SidecarError
from sidecar.operating_system import use_utf8
from sidecar.text.printable import json_text, printable, printable_lines, shorten_error
from sidecar.text.tables import EIGHTHS, wrap_line

if TYPE_CHECKING:
    from sidecar.config.settings import Problem, Settings

T = TypeVar("T")

NAME = "token-sidecar"
"""The prefix of every line on standard error."""
PROGRESS_BYTES = 8_000_000
"""Inputs of at least this many bytes get a progress bar on a terminal."""


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{NAME}: {printable_lines(super().format(record))}"


def prepare_output() -> None:
    """Set up standard output, standard error and the fallback log handler for a command."""
    if logging.lastResort:
        logging.lastResort.setFormatter(_Formatter())
    for stream in (sys.stdout, sys.stderr):
        escape_unencodable(stream)


def escape_unencodable(stream: object) -> None:
    """Configure a stream to escape the characters that its encoding does not support."""
    if isinstance(stream, io.TextIOWrapper):
        use_utf8(stream)
        stream.reconfigure(errors="backslashreplace")


def echo(text: str, *, err: bool = False) -> None:
    """Print text and flush the stream. Exit with code 2 if the disk is full."""
    stream = sys.stderr if err else sys.stdout
    if stream is None:  # there is no stream under pythonw
        return
    with nullcontext() if err else flush_output():
        stream.write(f"{text}\n")
        stream.flush()


@contextmanager
def flush_output() -> Iterator[None]:
    """Flush standard output after the block. Exit with code 2 if the disk is full."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _exit_on_full_disk(error)


def _exit_on_full_disk(error: OSError) -> NoReturn:
    devnull = os.open(os.devnull, os.O_WRONLY)
    # Otherwise, Python would try to write the buffered text again at exit.
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
    warn(f"cannot write to standard output: {error.strerror}")
    sys.exit(2)


def print_lines(*lines: str, err: bool = False) -> None:
    """Print lines. Line breaks within a line are escaped."""
    text = "\n".join(_fit_terminal(printable(line), err=err) for line in lines)
    echo(to_encodable(text), err=err)


def _fit_terminal(line: str, *, err: bool) -> str:
    """Wrap a line that is wider than the terminal. In files and pipes, lines stay whole."""
    stream = sys.stderr if err else sys.stdout
    if stream is None or not stream.isatty():
        return line
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except OSError:  # NUL on Windows, or a stream without a file descriptor
        return line
    return wrap_line(line, width) if width else line


def print_styled(line: str) -> None:
    """Print a line. Keep its colors, and escape all other control characters."""
    parts = _STYLE.split(line)
    text = (part if index % 2 else printable(part) for index, part in enumerate(parts))
    echo("".join(text))


_STYLE = re.compile(r"(\x1b\[[0-9;]{0,64}m)")


def warn(*lines: str) -> None:
    """Print lines on standard error, each prefixed with the program's name."""
    for line in lines:
        text = shorten_error(printable(f"{NAME}: {line}"))
        echo(_fit_terminal(text, err=True), err=True)


def print_problems(problems: Iterable[Problem]) -> bool:
    """Print configuration problems, and return whether any of them is an error."""
    problems = list(problems)
    warn(*map(str, problems))
    return any(problem.severity == "error" for problem in problems)


def load_settings_for(path: str) -> tuple[Settings, bool]:
    """Load the settings for a path and print their problems. Return whether there are errors."""
    from sidecar.config.load import load
    from sidecar.config.paths import find_root
    from sidecar.project.files import STDIN

    loaded = load(find_root(Path.cwd() if path == STDIN else Path(path).absolute()))
    return loaded.settings, print_problems(loaded.problems)


def warn_if_unknown_model(model: str, settings: Settings) -> None:
    """Warn if a model is neither in the catalogue nor in the settings."""
    from sidecar.config.settings import DEFAULT_MODEL

    if model == DEFAULT_MODEL:  # in a short run, the lookup would be 10% of the time
        return
    from sidecar.workspace.views import unknown_model_text

    if text := unknown_model_text(model, settings):
        warn(text)


def print_error(error: click.ClickException, _: object = None) -> None:
    """Print an error. If the command line is invalid, print the usage first."""
    import click

    if isinstance(error, click.UsageError) and error.ctx:
        usage, command = error.ctx.get_usage(), error.ctx.command_path
        print_lines(*usage.splitlines(), f"Try '{command} --help' for help.", "", err=True)
    warn(error.format_message())


def write_page(html: str, path: str) -> None:
    """Write a page to a file, or to standard output if the path is `-`."""
    import click

    if path == "-":
        echo(html)
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(html)
    except OSError as error:
        raise click.UsageError(f"cannot write {path}: {error.strerror}") from error
    print_lines(f"Wrote {path}.", err=True)


def replace_invalid_utf8(text: str) -> str:
    """Replace surrogates, which represent bytes that are not valid UTF-8, with U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    echo(json_text(value))


_ASCII = str.maketrans(
    {
        **dict.fromkeys(EIGHTHS.strip(" █"), ""),
        "█": "#",
        "░": ".",
        "●": "*",
        "≥": ">=",
        "·": "-",
        "…": "~",
    }
)


def to_encodable(text: str) -> str:
    """Replace bars and symbols with ASCII characters if standard output cannot encode them."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return text.translate(_ASCII)
    return text


def with_progress(work: Iterable[T], steps: int, size: int) -> Iterable[T]:
    """Return `work`, with a progress bar on a terminal if the input is large.

    Args:
        work: The items, one for each step.
        steps: The number of steps.
        size: The input size in bytes.
    """
    if not sys.stderr.isatty() or size < PROGRESS_BYTES:
        return work
    from rich.console import Console
    from rich.progress import track

    return track(work, "Counting", steps, console=Console(stderr=True), transient=True)


class Change(Protocol):
    """A change of another program's configuration."""

    def describe(self) -> str: ...
    def is_needed(self) -> bool: ...
    def apply(self) -> None: ...


def confirm_change(change: Change, nothing: str, *, has_consent: bool) -> int | None:
    """Show a change of another program's configuration, ask for consent, and apply the change.

    Args:
        change: The change.
        nothing: The state of the configuration if the change is not needed.
        has_consent: Whether not to ask.

    Returns:
        None if the change was applied, else the exit code.
    """
    try:
        if not change.is_needed():
            print_lines(f"Nothing to do: {nothing}.")
            return 0
        print_lines(*f"This will {change.describe()}".splitlines())
        if not has_consent and not sys.stdin.isatty():
            warn("nothing was changed: cannot ask for confirmation without a terminal; add --yes")
            return 1
        if not has_consent and not click.confirm("Continue?", default=True):
            warn("nothing was changed")
            return 1
        change.apply()
    except SidecarError as error:
        warn(str(error))
        return 1
    return None
