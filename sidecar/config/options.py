"""Defines layers of raw setting values, their origins and their problems."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from sidecar.config.settings import Settings
from sidecar.config.toml import KeyPath, ValueSpan, find_span
from sidecar.text.printable import printable

Source = Literal["default", "system", "user", "project", "environment", "editor"]
ProblemSeverity = Literal["error", "warning"]
FileKey = tuple[Source, Path]
"""A file and its role. The same file may be both a user file and a project file."""


_KEY = re.compile(r"[\w.-]{1,60}", re.ASCII)


class Origin(msgspec.Struct, frozen=True):
    """The source of a value. `file` and `line` (1-based) are None if the source is not a file."""

    source: Source
    file: Path | None = None
    line: int | None = None
    path: KeyPath = ()
    """The full path of the key in the file, in the format of `find_spans`."""

    def __str__(self) -> str:
        if self.file is None:
            return self.source
        return f"{self.file}:{self.line}" if self.line else str(self.file)


class Problem(msgspec.Struct, frozen=True):
    """A problem in the configuration. `line` and `column` are 1-based, or None if unknown."""

    file: Path | None
    key: str
    line: int | None
    message: str
    severity: ProblemSeverity = "error"
    source: Source = "user"
    column: int | None = None
    refused: bool = False
    """Whether the file must not be opened, not even by an editor that displays the problem.

    Neovim reads a file that has a diagnostic, so a FIFO or device would block it.
    """

    def __str__(self) -> str:
        where = f"{self.source} settings" if self.file is None else str(self.file)
        place = f"{where}:{self.line}" if self.line else where
        place = f"{place}:{self.column}" if self.line and self.column else place
        return printable(
            f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"
        )


class Layer(msgspec.Struct, frozen=True):
    """The values from one source. `prefix` is the path of the table that contains them."""

    source: Source
    values: Mapping[str, Any]
    file: Path | None = None
    spans: Mapping[KeyPath, ValueSpan] = {}
    keys: Mapping[KeyPath, ValueSpan] = {}
    prefix: KeyPath = ()

    def origin(self, path: KeyPath) -> Origin:
        """Return the origin of the value at a path."""
        full = (*self.prefix, *path)
        span = find_span(self.spans, full)
        return Origin(self.source, self.file, span.line if span else None, full)

    def problem(
        self,
        path: KeyPath,
        message: str,
        severity: ProblemSeverity = "error",
        *,
        at_key: bool = False,
    ) -> Problem:
        """Create a problem that points to the value or the key at a path."""
        full = (*self.prefix, *path)
        span = (self.keys.get(full) if at_key else None) or find_span(self.spans, full)
        line, column = (span.line, span.column) if span else (None, None)
        return Problem(self.file, format_key(path), line, message, severity, self.source, column)

    def spell_key(self, key: str) -> str:
        """Spell a kebab-case key the way this layer does. The editor's layer uses camelCase."""
        return to_camel_case(key) if self.source == "editor" else key


@dataclass(frozen=True)
class Loaded:
    """The settings in effect, and the problems found while loading them."""

    settings: Settings
    problems: tuple[Problem, ...]
    origins: Mapping[str, Origin]
    """The origin of each value, by setting key."""
    files: Mapping[FileKey, Layer] = field(default_factory=dict)
    """The last valid contents of each file."""

    @property
    def configured_model(self) -> str | None:
        """The model that any source sets, or None if it is the default."""
        origin = self.origins.get("model")
        return None if origin is None or origin.source == "default" else self.settings.model


def to_camel_case(key: str) -> str:
    """Convert a key such as `max-tokens` to `maxTokens`."""
    return re.sub(r"-(\w)", lambda match: match.group(1).upper(), key)


def format_key(path: KeyPath) -> str:
    """Format a path such as `("budget", 1, "max-tokens")` as `budget[1].max-tokens`.

    Parts that do not look like keys are replaced by `"..."`, because they may be secrets.
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            printed = part if _KEY.fullmatch(part) else '"..."'
            text += f".{printed}" if text else printed
    return text
