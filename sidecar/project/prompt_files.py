"""Finds the prompt files that coding agents send with every request.

Symbolic links are resolved first. A prompt file in a repository must be inside the root
folder, and a user's own prompt file must be inside the agent's folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed

if TYPE_CHECKING:
    from sidecar.agents.folders import Places

OUTSIDE = "skipped: outside the root folder"
_MAX_BYTES = 1 << 20
_MAX_FILES = 500
"""Maximum number of prompt files per root, including imports."""
_MAX_TEXT = 16 << 20
"""Maximum combined size of a root's prompt files, in characters."""
_MAX_IMPORTS = 1_000
"""Maximum number of imports in a file."""
_MAX_DEPTH = 5
"""Maximum depth of nested imports. Claude Code has the same limit."""


class UserFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user's own prompt file."""

    folders: tuple[str, ...]
    file: str


class _Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    project: dict[str, frozenset[str]]
    user: dict[str, UserFile]


@cache
def _rules() -> _Rules:
    return typed.read_table("sidecar.project", "prompt_files.toml", _Rules)


def project_rules() -> dict[str, frozenset[str]]:
    """Return the agents that send each file of a repository, by a glob relative to the root."""
    return _rules().project


def user_files() -> dict[str, UserFile]:
    """Return the file of the user's that each agent sends in all repositories."""
    return _rules().user


@cache
def public_names() -> frozenset[str]:
    """Return file names that reveal nothing about the user and may be sent to a collector."""
    own = {user.file for user in user_files().values()}
    return frozenset({pattern.rpartition("/")[2] for pattern in project_rules()} | own)


class PromptFile(msgspec.Struct, frozen=True):
    """A prompt file. If it could not be read, `text` is None and `note` explains why."""

    path: str
    agents: frozenset[str]
    text: str | None
    note: str | None = None
    is_own: bool = False
    """Whether the file belongs to the user, not to a workspace. It is sent in all workspaces."""


def prompt_files(root: Path, places: Places | None) -> list[PromptFile]:
    """Return a root's prompt files.

    Args:
        root: The root folder.
        places: The folders used by agents. If None, imports and user files are skipped.
    """
    files: dict[str, PromptFile] = {}
    for pattern, agents in project_rules().items():
        for path in _find_matching(root, pattern)[: _MAX_FILES - len(files)]:
            if not _is_full(files):
                _add_file(files, _read_inside(root, path, agents))
    if places is None:
        return list(files.values())
    for file in list(files.values()):
        if "claude-code" in file.agents:
            _add_imports(files, root, file, _MAX_DEPTH)
    for agent, user in user_files().items():
        folders = (*places.from_settings(agent), *places.in_use(user.folders))
        for folder in dict.fromkeys(folders):
            if (folder / user.file).is_file():
                file = _read_inside(folder, folder / user.file, frozenset({agent}))
                _add_file(files, msgspec.structs.replace(file, is_own=True))
    return list(files.values())


def _find_matching(root: Path, pattern: str) -> list[Path]:
    if "*" not in pattern:
        return [root / pattern] if (root / pattern).is_file() else []
    return sorted(root.glob(pattern))


def _is_full(files: Mapping[str, PromptFile]) -> bool:
    size = sum(len(file.text or "") for file in files.values())
    return len(files) >= _MAX_FILES or size > _MAX_TEXT


def _add_file(files: dict[str, PromptFile], file: PromptFile) -> None:
    earlier = files.get(file.path)
    if earlier is None:
        files[file.path] = file
        return
    files[file.path] = msgspec.structs.replace(
        earlier, agents=file.agents | earlier.agents, is_own=file.is_own or earlier.is_own
    )


def _read_inside(root: Path, path: Path, agents: frozenset[str]) -> PromptFile:
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(root)):
        return PromptFile(str(path), agents, None, OUTSIDE)
    try:
        if not real.is_file() or real.stat().st_size > _MAX_BYTES:
            return PromptFile(
                str(path), agents, None, "skipped: not a regular file, or larger than 1 MB"
            )
        return PromptFile(str(path), agents, real.read_text("utf-8-sig", "replace"))
    except OSError as error:
        return PromptFile(str(path), agents, None, error.strerror or "cannot be read")


def _add_imports(files: dict[str, PromptFile], root: Path, file: PromptFile, hops: int) -> None:
    claude = frozenset({"claude-code"})
    names = dict.fromkeys(islice(find_imports(file.text or ""), _MAX_IMPORTS)) if hops else {}
    for name in names:
        if _is_full(files):
            return
        named = Path(name).expanduser() if name.startswith("~") else Path(file.path).parent / name
        path = Path(os.path.normpath(named))
        inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))
        if str(path) in files and "claude-code" in files[str(path)].agents:
            continue
        if inside and not path.is_file():
            continue  # not an import, for example an e-mail address or a decorator
        imported = (
            _read_inside(root, path, claude)
            if inside
            else PromptFile(str(path), claude, None, OUTSIDE)
        )
        _add_file(files, imported)
        if imported.text is not None:
            _add_imports(files, root, imported, hops - 1)


_FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})")
_TICKS = re.compile(r"`+")
_IMPORT = re.compile(r"(?<!\S)@((?:~|\.{1,2})?/?[\w.+/-]*[\w/-])")


def find_imports(text: str) -> Iterator[str]:
    """Yield the paths of `@path` imports in Markdown. Imports in code are ignored."""
    for line in _lines_outside_code(text.splitlines()):
        for match in _IMPORT.finditer(_remove_code_spans(line)):
            yield match[1]


def _remove_code_spans(line: str) -> str:
    runs = list(_TICKS.finditer(line))
    closing: dict[int, int] = {}
    latest: dict[int, int] = {}
    for index in range(len(runs) - 1, -1, -1):
        length = len(runs[index][0])
        if length in latest:
            closing[index] = latest[length]
        latest[length] = index
    parts, at, index = [], 0, 0
    while index < len(runs):
        end = closing.get(index)
        if end is not None:
            parts.append(line[at : runs[index].start()])
            at, index = runs[end].end(), end
        index += 1
    return "".join([*parts, line[at:]])


def _lines_outside_code(lines: Iterable[str]) -> Iterator[str]:
    fence = ""
    for line in lines:
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
        elif not fence:
            yield line


def is_prompt_file(relative: str) -> bool:
    """Return whether any agent sends the file with this path, relative to the root."""
    return any(
        fnmatchcase(relative, pattern) and relative.count("/") == pattern.count("/")
        for pattern in project_rules()
    )
