"""Loads settings from configuration files, the environment and the editor."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sidecar.config.merge_layers import resolve
from sidecar.config.options import (
    FileKey,
    Layer,
    Loaded,
    Origin,
    Problem,
    ProblemSeverity,
    Source,
    format_key,
)
from sidecar.config.paths import (
    LIMIT_VARIABLE,
    PROJECT_FILE,
    PYPROJECT,
    config_file,
    project_files,
    system_config_file,
)
from sidecar.config.roots import has_section
from sidecar.config.safe_files import RefusedError, read_file
from sidecar.config.toml import InvalidTomlError, KeyPath, find_spans, parse

NO_EFFECT = (
    f"[tool.token-sidecar] has no effect beside a {PROJECT_FILE}; move its settings to that file"
)
NO_FILE = (
    "no such file (set by TOKEN_SIDECAR_CONFIG); `token-sidecar config init --user` creates it"
)
LAST_VALID = "the last valid settings of this file remain in effect"
NOTHING = "this file is ignored"
_SECTION: KeyPath = ("tool", "token-sidecar")

__all__ = ["Loaded", "Origin", "Problem", "load"]


def load(
    root: Path | None = None,
    editor: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    project_file: Path | None = None,
    previous: Loaded | None = None,
) -> Loaded:
    """Load a root folder's settings from the machine's, user's and project's files and the editor.

    Never raises. The result contains all problems.

    Args:
        root: The root folder, or None for documents outside of all root folders.
        editor: The editor's `tokenSidecar` section, with camelCase keys. It may set trusted keys,
            so clients must read them only from the user's own settings.
        env: The environment variables. Defaults to `os.environ`.
        project_file: A file to read instead of the project's own settings file.
        previous: The previous result. It provides the last valid values of files that are now
            broken.
    """
    environ = os.environ if env is None else env
    files = _Files(previous.files if previous else {})
    files.read_own(environ)
    if project_file is not None:
        files.read_named(project_file)
    elif root is not None:
        files.read_project(root)
    resolved = resolve([*files.layers.values(), Layer("editor", dict(editor or {}))])
    # For a broken file, the values of its last valid version are used. Their line numbers may be
    # wrong now, so problems with these values are not reported.
    problems = [problem for problem in resolved.problems if problem.file not in files.broken]
    problems = [*files.problems, *problems]
    loaded = Loaded(resolved.settings, tuple(problems), resolved.origins, files.layers)
    return _apply_limit(environ, loaded)


class _Files:
    def __init__(self, last_valid: Mapping[FileKey, Layer]) -> None:
        self.layers: dict[FileKey, Layer] = {}
        """The last valid contents of each file, lowest precedence first."""
        self.problems: list[Problem] = []
        self.broken: set[Path] = set()
        """Files that cannot be read or parsed."""
        self._last_valid = last_valid

    def read_own(self, environ: Mapping[str, str]) -> None:
        """Read the machine's and the user's file."""
        self._read("system", system_config_file(environ), ())
        path = config_file(environ)
        if not self._read("user", path, ()) and "TOKEN_SIDECAR_CONFIG" in environ:
            self.problems.append(Problem(path, "", None, NO_FILE))

    def read_named(self, path: Path) -> None:
        self._read("project", path, _SECTION if path.name == PYPROJECT else ())

    def read_project(self, root: Path) -> None:
        """Read `.token-sidecar.toml` or, if it does not exist, `pyproject.toml`."""
        own, pyproject = project_files(root)
        if not self._read("project", own, (), root):
            self._read("project", pyproject, _SECTION, root)
        elif has_section(pyproject):
            self.problems.append(Problem(pyproject, "", None, NO_EFFECT, "warning", "project"))

    def _read(self, source: Source, path: Path, prefix: KeyPath, root: Path | None = None) -> bool:
        is_shared = root is not None and path.name == PYPROJECT
        try:
            # Line endings are not converted, because spans are offsets in this text.
            text = read_file(path, root).decode("utf-8-sig")
            if not is_shared or "token-sidecar" in text:
                self._add_section(path, Layer(source, parse(text), path, *find_spans(text), prefix))
        except InvalidTomlError as error:
            self._report_broken(path, source, str(error), error.line, error.column, error.key)
        except UnicodeDecodeError as error:
            is_warning = is_shared and b"token-sidecar" not in error.object
            line = error.object.count(b"\n", 0, error.start) + 1
            self._report_broken(path, source, "is not UTF-8", line, is_warning=is_warning)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                return False
            message = f"cannot be read: {error.strerror or 'unknown reason'}"
            refused = isinstance(error, RefusedError)
            self._report_broken(path, source, message, refused=refused, is_warning=is_shared)
        return True

    def _add_section(self, path: Path, layer: Layer) -> None:
        section = _get_nested(layer.values, layer.prefix)
        if not isinstance(section, dict):
            problem = layer.problem((), "must be a table")
            self.problems.append(replace(problem, key=format_key(layer.prefix)))
            section = {}
        self.layers[layer.source, path] = replace(layer, values=section)

    def _report_broken(
        self,
        path: Path,
        source: Source,
        message: str,
        line: int | None = None,
        column: int | None = None,
        key: str = "",
        *,
        refused: bool = False,
        is_warning: bool = False,
    ) -> None:
        """Report a file that cannot be read or parsed, and use its last valid contents.

        The problem is only a warning if the file is a `pyproject.toml` that may not contain any of
        our settings.
        """
        self.broken.add(path)
        last_valid = self._last_valid.get((source, path))
        if last_valid is not None:
            self.layers[source, path] = last_valid
        if not is_warning:
            message = f"{message}; {LAST_VALID if last_valid else NOTHING}"
        severity: ProblemSeverity = "warning" if is_warning else "error"
        problem = Problem(path, key, line, message, severity, source, column, refused)
        self.problems.append(problem)


def _get_nested(values: object, prefix: KeyPath) -> object:
    for key in prefix:
        values = values.get(key, {}) if isinstance(values, dict) else {}
    return values


def _apply_limit(environ: Mapping[str, str], loaded: Loaded) -> Loaded:
    """Set or lower `context.limit` according to the environment variable `CONTEXT_MAX_TOKENS`."""
    value = environ.get(LIMIT_VARIABLE, "").strip()
    if not value:
        return loaded
    if not re.fullmatch(r"0*[1-9][0-9]{0,17}", value):
        message = "must be a whole number of at least 1 (ignored)"
        problem = Problem(None, LIMIT_VARIABLE, None, message, source="environment")
        return dataclasses.replace(loaded, problems=(*loaded.problems, problem))
    limit, context = int(value), loaded.settings.context
    if context.limit is not None and context.limit <= limit:
        return loaded
    return dataclasses.replace(
        loaded,
        settings=replace(loaded.settings, context=replace(context, limit=limit)),
        origins={**loaded.origins, "context.limit": Origin("environment")},
    )
