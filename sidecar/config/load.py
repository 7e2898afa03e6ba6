"""Reading configuration. With `project_files` the only file of this room that touches the disk."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from sidecar.config.loaded import Loaded
from sidecar.config.options import Layer, Origin, Problem, ProblemSeverity, Source, key_text
from sidecar.config.paths import LIMIT_VARIABLE, PYPROJECT, config_file, project_files
from sidecar.config.project_files import RefusedError, read_file
from sidecar.config.resolve import resolve
from sidecar.config.toml_repair import parse
from sidecar.config.toml_spans import KeyPath, toml_places

if TYPE_CHECKING:
    from pathlib import Path


NO_FILE = (
    "no such file (named by TOKEN_SIDECAR_CONFIG); `token-sidecar config init --user` writes one"
)
_SECTION: KeyPath = ("tool", "token-sidecar")

__all__ = ["Loaded", "Origin", "Problem", "find_root", "load"]


def load(
    root: Path | None = None,
    editor: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    project_file: Path | None = None,
) -> Loaded:
    """Settings of a workspace root: user's file, then project's, then the editor's section.

    `editor` is the section `tokenSidecar` as JSON (camelCase). Its trusted keys are obeyed, so a
    client must fill them from the user's own settings only. `project_file` is read in place of
    the root's own file, with no more rights. Never raises: see `Loaded.problems`.
    """
    environ = os.environ if env is None else env
    problems: list[Problem] = []
    layers = [_user_layer(environ, problems)]
    if project_file is not None:
        layers.append(_named_layer(project_file, problems))
    elif root is not None:
        layers.append(_project_layer(root, problems))
    layers.append(Layer("editor", dict(editor or {})))
    found = resolve([layer for layer in layers if layer is not None])
    capped = _with_limit_of(environ, found)
    return Loaded(capped.settings, (*problems, *capped.problems), capped.origins)


def find_root(start: Path) -> Path:
    """The nearest folder at or above `start` that `is_root`, else its folder."""
    folder = start if os.path.isdir(start) else start.parent
    return next((one for one in (folder, *folder.parents) if is_root(one)), folder)


def is_root(folder: Path) -> bool:
    """Whether a folder holds a project configuration or a `.git`. Never raises, as pathlib does of
    a name that is too long or a folder that is closed."""
    own, pyproject = project_files(folder)
    if os.path.isfile(own) or os.path.exists(folder / ".git"):
        return True
    return os.path.isfile(pyproject) and _has_section(pyproject)


def _user_layer(environ: Mapping[str, str], problems: list[Problem]) -> Layer | None:
    path = config_file(environ)
    text = _read(path, "user", problems)
    if text is None:
        if "TOKEN_SIDECAR_CONFIG" in environ and not os.path.exists(path):
            message = NO_FILE
            problems.append(Problem(path, "", None, message))
        return None
    return _layer("user", path, text, (), problems)


def _project_layer(root: Path, problems: list[Problem]) -> Layer | None:
    own, pyproject = project_files(root)
    text = _read(own, "project", problems, root)
    if text is not None:
        return _layer("project", own, text, (), problems)
    text = _read(pyproject, "project", problems, root)
    if text is None or "token-sidecar" not in text:
        return None
    return _layer("project", pyproject, text, _SECTION, problems)


def _named_layer(path: Path, problems: list[Problem]) -> Layer | None:
    text = _read(path, "project", problems)
    if text is None:
        return None
    return _layer("project", path, text, _SECTION if path.name == PYPROJECT else (), problems)


def _layer(
    source: Source, path: Path, text: str, prefix: KeyPath, problems: list[Problem]
) -> Layer | None:
    parsed = parse(text)
    problems.extend(
        Problem(path, error.key, error.line, error.message, source=source, column=error.column)
        for error in parsed.problems
    )
    spans, keys = toml_places(parsed.text)
    section = _within(parsed.values, prefix)
    layer = Layer(source, {}, path, spans, keys, prefix, bool(parsed.problems))
    if isinstance(section, dict):
        return replace(layer, values=section)
    problems.append(replace(layer.problem((), "must be a table"), key=key_text(prefix)))
    return None


def _within(values: object, prefix: KeyPath) -> object:
    for key in prefix:
        values = values.get(key, {}) if isinstance(values, dict) else {}
    return values


def _read(
    path: Path, source: Source, problems: list[Problem], root: Path | None = None
) -> str | None:
    """The text of a configuration file; None when there is none or it cannot be read.

    A pyproject.toml that may not be read is only a warning: it may be no business of ours.
    """
    severity: ProblemSeverity = "warning" if root and path.name == PYPROJECT else "error"
    try:
        # Line endings stay as they are: TOML allows \r\n, and spans are of this very text.
        return read_file(path, root).decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problems.append(Problem(path, "", line, "is not UTF-8", severity, source))
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # nothing has such a name
            return None
        message = f"cannot be read: {error.strerror or 'unknown reason'}"
        refused = isinstance(error, RefusedError)
        problems.append(Problem(path, "", None, message, severity, source, refused=refused))
    return None


def _with_limit_of(environ: Mapping[str, str], found: Loaded) -> Loaded:
    """`CONTEXT_MAX_TOKENS` caps the setting, and stands in where it is not set."""
    written = environ.get(LIMIT_VARIABLE, "").strip()
    if not written:
        return found
    if not re.fullmatch(r"0*[1-9][0-9]{0,17}", written):
        message = "must be a whole number, 1 or more (left out)"
        problem = Problem(None, LIMIT_VARIABLE, None, message, source="environment")
        return Loaded(found.settings, (*found.problems, problem), found.origins)
    return _capped(found, int(written))


def _capped(found: Loaded, limit: int) -> Loaded:
    context = found.settings.context
    if context.limit is not None and context.limit <= limit:
        return found
    settings = replace(found.settings, context=replace(context, limit=limit))
    origins = {**found.origins, "context.limit": Origin("environment")}
    return Loaded(settings, found.problems, origins)


def _has_section(pyproject: Path) -> bool:
    """Whether a table is written there: a comment or a string that names it is none."""
    text = _read(pyproject, "project", [], pyproject.parent)
    if text is None or "token-sidecar" not in text:
        return False
    tools = _within(parse(text).values, _SECTION[:-1])
    return isinstance(tools, dict) and _SECTION[-1] in tools
