"""Options as someone wrote them: a layer of unchecked values, and where each of them stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from sidecar.config.toml_spans import Path as KeyPath
from sidecar.config.toml_spans import Span, line_of

Source = Literal["default", "user", "project", "environment", "editor"]
Severity = Literal["error", "warning"]


class Origin(msgspec.Struct, frozen=True):
    """Where a value came from: `file` and the 1-based `line` are None outside files."""

    source: Source
    file: Path | None = None
    line: int | None = None
    path: KeyPath = ()
    """The key's path in that file, from the file's top, as `toml_spans` has it."""

    def __str__(self) -> str:
        if self.file is None:
            return self.source
        return f"{self.file}:{self.line}" if self.line else str(self.file)


class Problem(msgspec.Struct, frozen=True):
    """One thing wrong in a configuration; `line` is 1-based, and None outside files."""

    file: Path | None
    key: str
    line: int | None
    message: str
    severity: Severity = "error"
    source: Source = "user"

    def __str__(self) -> str:
        where = f"{self.source} settings" if self.file is None else str(self.file)
        place = f"{where}:{self.line}" if self.line else where
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class Layer(msgspec.Struct, frozen=True):
    """The values of one source. `prefix` is where they begin in the file (`tool`, …).

    `repaired`: statements with mistakes were taken out (and said), so that keys may be missing.
    """

    source: Source
    values: Mapping[str, Any]
    file: Path | None = None
    spans: Mapping[KeyPath, Span] = {}
    prefix: KeyPath = ()
    repaired: bool = False

    def origin(self, path: KeyPath) -> Origin:
        """Where the value at `path` was written."""
        full = (*self.prefix, *path)
        return Origin(self.source, self.file, line_of(self.spans, full), full)

    def problem(self, path: KeyPath, message: str, severity: Severity = "error") -> Problem:
        """A problem with the value at `path`."""
        line = line_of(self.spans, (*self.prefix, *path))
        return Problem(self.file, key_text(path), line, message, severity, self.source)

    def spelling(self, key: str) -> str:
        """How `key` (kebab-case) is written in this layer: the editor's JSON is camelCase."""
        return camel(key) if self.source == "editor" else key


def camel(key: str) -> str:
    """`max-tokens` -> `maxTokens`."""
    return re.sub(r"-(\w)", lambda match: match.group(1).upper(), key)


def key_text(path: KeyPath) -> str:
    """`("budget", 1, "max-tokens")` -> `budget[1].max-tokens`, counted from 0."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            shown = part if re.fullmatch(r"[\w-]+", part) else f'"{part}"'
            text += f".{shown}" if text else shown
    return text
