"""Loads settings from configuration files, the environment and the editor.

`resolve` merges these layers, and refuses what a repository may not set.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec
from msgspec.structs import replace

from sidecar.config.checks import (
    InvalidError,
    check_agents,
    check_budget,
    check_context,
    check_models,
    convert_value,
    unreachable_soft_caps,
)
from sidecar.config.paths import (
    LIMIT_VARIABLE,
    PROJECT_FILE,
    PYPROJECT,
    config_file,
    has_section,
    project_files,
    system_config_file,
)
from sidecar.config.safe_files import RefusedError, read_file
from sidecar.config.settings import (
    Agents,
    Budget,
    Context,
    FileKey,
    FootprintSettings,
    InstructionCode,
    Layer,
    Loaded,
    Origin,
    Problem,
    ProblemSeverity,
    Settings,
    Source,
    Table,
    Team,
    format_key,
    setting_names,
)
from sidecar.config.toml import InvalidTomlError, KeyPath, find_spans, parse
from sidecar.known_agents import all_agents
from sidecar.text.globs import MAX_PATTERNS

NO_EFFECT = (
    f"[tool.token-sidecar] has no effect beside a {PROJECT_FILE}; move its settings to that file"
)
NO_FILE = (
    "no such file (set by TOKEN_SIDECAR_CONFIG); `token-sidecar config init --user` creates it"
)
LAST_VALID = "the last valid settings of this file remain in effect"
NOTHING = "this file is ignored"
_SECTION: KeyPath = ("tool", "token-sidecar")


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
            key = error.key if error.key in setting_names() else ""  # it may be a secret
            self._report_broken(path, source, str(error), error.line, error.column, key)
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


TRUSTED_KEYS = frozenset(
    {"endpoint", "tokenize", "tokenizer", "price", "cost", "agents", "ledger", "team"}
)
"""Keys that are ignored in a project's file.

These settings could make the program contact servers, read other files or spend money.
"""
_MESSAGE = (
    "ignored, because it can be set only in your own settings; move it to the file that "
    "`token-sidecar config init --user` creates"
)


def _remove_trusted_keys(layer: Layer) -> tuple[Layer, list[Problem]]:
    """Return the layer without keys that a project must not set, and a warning for each of them."""
    refused = sorted(TRUSTED_KEYS & layer.values.keys()) if layer.source == "project" else []
    kept = {key: value for key, value in layer.values.items() if key not in refused}
    problems = [layer.problem((key,), _MESSAGE, "warning", at_key=True) for key in refused]
    return replace(layer, values=kept), problems


EDITOR_ONLY = frozenset({"server", "trace"})
"""Keys in the editor's section that only the editor plugin uses."""

_EXAMPLES = {
    "sections": '{ "Context" = 1500 }',
    "paths": '{ codex = "~/elsewhere/.codex" }',
    "severity": '{ instructions-cut = "error" }',
}
"""Examples for settings that are tables with arbitrary keys."""

TOKEN_SOURCES = ("token_env", "token_file", "token_command")
"""The settings in `Team` of which one names the collector's token."""

MAX_PROBLEMS = 50
MAX_KEY = 60  # longer keys are not checked for typos
MAX_TABLES = 500  # the maximum length of each list of tables, such as [[budget]]

_T = TypeVar("_T", bound=Table)


def resolve(layers: Sequence[Layer]) -> Loaded:
    """Merge layers, lowest precedence first. Never raises. Problems are included in the result."""
    resolver = _Resolver(layers)
    settings = resolver.table(Settings, ())
    return Loaded(settings, tuple(resolver.problems), resolver.origins)


class _Resolver:
    def __init__(self, layers: Sequence[Layer]) -> None:
        self.problems: list[Problem] = []
        self.origins: dict[str, Origin] = {}
        self._layers: list[Layer] = []
        for layer in layers:
            allowed, refused = _remove_trusted_keys(layer)
            self._layers.append(allowed)
            for problem in refused:
                self._add(problem)

    def table(self, kind: type[_T], path: KeyPath) -> _T:
        """Return the table at a path. Its keys may come from different layers."""
        tables = list(self._tables_at(path))
        for layer, values in tables:
            self._report_unknown(kind, layer, values, path)
        fields: dict[str, Any] = {}
        for field in msgspec.structs.fields(kind):
            here = (*path, field.encode_name)
            entry = _entry_type(field.type)
            if entry is not None:
                fields[field.name] = self._resolve_entries(entry, here, tables)
            elif _is_table(field.type):
                fields[field.name] = self.table(field.type, here)
            else:
                self._set_value(field, here, tables, fields)
        if kind is Team:
            fields |= self._replaced_token_sources(path)
        return self._check_values(kind(**fields), path)

    def _set_value(
        self,
        field: msgspec.structs.FieldInfo,
        path: KeyPath,
        tables: list[tuple[Layer, Mapping[str, Any]]],
        fields: dict[str, Any],
    ) -> None:
        self.origins[format_key(path)] = Origin("default")
        for layer, values in tables:
            value = _value_of(layer, values, field.encode_name)
            if value is None:
                continue
            try:
                fields[field.name] = self._convert(layer, value, field.type, path)
            except InvalidError as error:
                self._report(layer, path, f"{error} (ignored)")
            else:
                self.origins[format_key(path)] = layer.origin(path)

    def _convert(self, layer: Layer, value: object, wanted: object, path: KeyPath) -> object:
        if get_origin(wanted) is not dict:
            return convert_value(value, wanted)
        # Users choose this table's keys, so each entry is validated separately.
        if not isinstance(value, dict):
            raise InvalidError(f"must be a table, such as {_EXAMPLES[str(path[-1])]}")
        kept: dict[str, object] = {}
        for name, entry in value.items():
            try:
                kept[name] = convert_value(entry, get_args(wanted)[1])
            except InvalidError as error:
                self._report(layer, (*path, name), f"{error} (ignored)")
        return kept

    def _resolve_entries(
        self, kind: type[Table], path: KeyPath, tables: list[tuple[Layer, Mapping[str, Any]]]
    ) -> tuple[Table, ...]:
        chosen: tuple[Table, ...] = ()
        self.origins[format_key(path)] = Origin("default")
        for layer, values in tables:
            written = _value_of(layer, values, str(path[-1]))
            if written is None:
                continue
            if not isinstance(written, list):
                self._report(layer, path, f"must be a list of tables, [[{path[-1]}]] (ignored)")
                continue
            if len(written) > MAX_TABLES:
                self._report(layer, path, f"has more than {MAX_TABLES} tables (ignored)")
                continue
            before = dict(self.origins)
            self._drop_origins(path)
            self.origins[format_key(path)] = layer.origin(path)
            entries = tuple(self._valid_entries(kind, path, layer, written))
            if written and not entries:
                self.origins = before
                continue
            chosen = entries
        return chosen

    def _valid_entries(
        self, kind: type[Table], path: KeyPath, layer: Layer, written: list[Any]
    ) -> Iterator[Table]:
        kept = 0
        for index, values in enumerate(written):
            entry = self._resolve_entry(kind, (*path, index), layer, values)
            if entry is None:
                continue
            # Invalid entries are left out of the result, so its indices do not count them.
            self.origins[format_key((*path, kept))] = layer.origin((*path, index))
            kept += 1
            yield entry

    def _resolve_entry(
        self, kind: type[Table], path: KeyPath, layer: Layer, values: object
    ) -> Table | None:
        """Return an entry in a list of tables, or None if it is invalid."""
        if not isinstance(values, dict):
            self._report(layer, path, "must be a table (ignored)")
            return None
        self._report_unknown(kind, layer, values, path)
        problems_before = len(self.problems)
        fields: dict[str, Any] = {}
        for field in msgspec.structs.fields(kind):
            value = _value_of(layer, values, field.encode_name)
            here = (*path, field.encode_name)
            try:
                if value is not None:
                    fields[field.name] = self._convert(layer, value, field.type, here)
            except InvalidError as error:
                self._report(layer, here, f"{error} (ignored)")
        entry, problem = _create_entry(kind, fields)
        # If one of the entry's values has been reported, do not also report the entry.
        if problem and len(self.problems) == problems_before:
            self._report(layer, path, f"{problem} (ignored)")
        return entry

    def _check_values(self, table: _T, path: KeyPath) -> _T:
        if isinstance(table, Context):
            problem = check_context(table)
            if problem is not None:
                self._report_at(path, "warn-at", f"{problem} (ignored)")
                return replace(table, warn_at=Context().warn_at)
        if isinstance(table, Agents):
            sources = table.sources and self._known_agents(path, "sources", table.sources)
            kept = self._known_agents(path, "paths", tuple(table.paths))
            return replace(table, sources=sources, paths={name: table.paths[name] for name in kept})
        if isinstance(table, FootprintSettings):
            agents = table.agents and self._known_agents(path, "agents", table.agents)
            codes, severity = get_args(InstructionCode), dict(table.severity)
            problem = f"unknown code; known codes: {', '.join(codes)}"
            for code in [code for code in severity if code not in codes]:
                self._report_at(path, "severity", problem, code)
                del severity[code]
            return replace(table, agents=agents, severity=severity)
        if isinstance(table, Settings):
            if sum(len(budget.files) for budget in table.budgets) > MAX_PATTERNS:
                problem = f"has more than {MAX_PATTERNS:,} patterns in all, so it is ignored"
                self._report_at(path, "budget", problem)
                return self._check_values(replace(table, budgets=()), path)
            for key in unreachable_soft_caps(table.cost):
                self._report_at(("cost",), key, "exceeds the hard cap and therefore has no effect")
        return table

    def _replaced_token_sources(self, path: KeyPath) -> dict[str, None]:
        """Return the settings for the collector's token that a layer of higher precedence replaces
        by another one.
        """
        ranks = {layer.source: rank for rank, layer in enumerate(self._layers)}
        sources = {name: f"{format_key(path)}.{name.replace('_', '-')}" for name in TOKEN_SOURCES}
        ranked = {name: ranks.get(self.origins[key].source, -1) for name, key in sources.items()}
        replaced = [name for name, rank in ranked.items() if rank < max(ranked.values())]
        self.origins |= {sources[name]: Origin("default") for name in replaced}
        return dict.fromkeys(replaced)

    def _known_agents(self, path: KeyPath, key: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of known agents, and report the others."""
        problem = check_agents(names)
        if problem is None:
            return names
        self._report_at(path, key, f"{problem} (ignored)")
        return tuple(name for name in names if name in all_agents())

    def _report_at(self, path: KeyPath, key: str, message: str, *inner: str) -> None:
        source = self.origins[format_key((*path, key))].source
        layer = next(layer for layer in self._layers if layer.source == source)
        self._report(layer, (*path, key, *inner), message)

    def _drop_origins(self, path: KeyPath) -> None:
        start = format_key(path) + "["
        for key in [key for key in self.origins if key.startswith(start)]:
            del self.origins[key]

    def _tables_at(self, path: KeyPath) -> Iterator[tuple[Layer, Mapping[str, Any]]]:
        for layer in self._layers:
            values: Any = layer.values
            for key in path:
                values = _value_of(layer, values, str(key)) if isinstance(values, dict) else None
            if isinstance(values, dict):
                yield layer, values
            elif values is not None:
                self._report(layer, path, f"must be a table, [{format_key(path)}] (ignored)")

    def _report_unknown(
        self, kind: type[Table], layer: Layer, values: Mapping[str, Any], path: KeyPath
    ) -> None:
        names = [field.encode_name for field in msgspec.structs.fields(kind)]
        known = {*names, *(layer.spell_key(name) for name in names)}
        if layer.source == "editor" and not path:
            known |= EDITOR_ONLY
        for key in values:
            if key not in known and len(self.problems) <= MAX_PROBLEMS:
                hint = _did_you_mean(key, names, layer, bool(path))
                problem = layer.problem((*path, key), f"unknown key{hint}", "warning", at_key=True)
                self._add(problem)

    def _report(self, layer: Layer, path: KeyPath, message: str) -> None:
        self._add(layer.problem(path, message))

    def _add(self, problem: Problem) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
        elif len(self.problems) == MAX_PROBLEMS:
            more = replace(problem, key="", message="has more problems that are not listed")
            self.problems.append(replace(more, severity="error"))


def _did_you_mean(key: str, names: list[str], layer: Layer, is_in_table: bool) -> str:
    import difflib

    if len(key) > MAX_KEY:
        return ""
    if is_in_table and layer.source != "editor" and key in _global_keys():
        if key + "s" in names:
            return f"; did you mean {key}s? The global {key} belongs above the first [table]"
        return "; it belongs above the first [table]"
    similar = difflib.get_close_matches(key.lower().replace("_", "-"), names, 1)
    if f"{key}s" in similar:  # `file` is a key of [[tokenizer]], but a typo in [[budget]]
        return f"; did you mean {key}s?"
    for field in msgspec.structs.fields(Settings):
        kind = _entry_type(field.type) or field.type
        if _is_table(kind) and key in {inner.encode_name for inner in msgspec.structs.fields(kind)}:
            table = f"[{field.encode_name}]"
            return f"; it belongs in {f'[{table}]' if _entry_type(field.type) else table}"
    if similar:
        return f"; did you mean {layer.spell_key(similar[0])}?"
    return f"; known keys: {', '.join(layer.spell_key(name) for name in sorted(names))}"


def _global_keys() -> set[str]:
    fields = msgspec.structs.fields(Settings)
    return {
        field.encode_name
        for field in fields
        if not _is_table(field.type) and _entry_type(field.type) is None
    }


def _create_entry(kind: type[Table], values: dict[str, Any]) -> tuple[Table | None, str | None]:
    fields = msgspec.structs.fields(kind)
    missing = [field.name for field in fields if field.required and field.name not in values]
    if missing:
        return None, f"needs {' and '.join(missing)}"
    entry = kind(**values)
    if isinstance(entry, Budget):
        problem = check_budget(entry)
    else:
        problem = check_models(entry.models) if hasattr(entry, "models") else None
    return (entry, None) if problem is None else (None, problem)


def _value_of(layer: Layer, values: Mapping[str, Any], key: str) -> object:
    """Return a key's value, or None. Tries the kebab-case spelling before the layer's spelling."""
    value = values.get(key)
    return values.get(layer.spell_key(key)) if value is None else value


def _is_table(wanted: object) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, Table)


def _entry_type(wanted: object) -> type[Table] | None:
    """Return the entry type of a list of tables, or None for other settings."""
    if get_origin(wanted) is not tuple:
        return None
    kind = get_args(wanted)[0]
    return kind if _is_table(kind) else None
