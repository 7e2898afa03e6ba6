"""Finds the prompt files that coding agents send with every request.

Symbolic links are resolved first. A prompt file in a repository must be inside the root
folder, and a user's own prompt file must be inside the agent's folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

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


_AGENTS_MD = (
    "codex copilot-chat copilot-cli opencode amp crush goose kilo-code roo-code cline kimi-cli "
    "kimi-code pi zed"
)
RULES: Mapping[str, str] = {
    "AGENTS.md": _AGENTS_MD,  # agents.md
    "AGENTS.override.md": "codex",  # developers.openai.com/codex/guides/agents-md
    # code.claude.com/docs/en/memory
    "CLAUDE.md": "claude-code",
    "CLAUDE.local.md": "claude-code",
    ".claude/CLAUDE.md": "claude-code",
    "GEMINI.md": "gemini-cli",  # geminicli.com/docs/cli/gemini-md
    "QWEN.md": "qwen-code",  # qwenlm.github.io/qwen-code-docs
    # docs.github.com/en/copilot/how-tos/configure-custom-instructions
    ".github/copilot-instructions.md": "copilot-chat copilot-cli",
    # cursor.com/docs/context/rules
    ".cursorrules": "cursor",
    ".cursor/rules/*.mdc": "cursor",
    # docs.cline.bot/features/cline-rules
    ".clinerules": "cline",
    ".clinerules/*.md": "cline",
    ".roo/rules/*.md": "roo-code",  # docs.roocode.com/features/custom-instructions
    ".kilocode/rules/*.md": "kilo-code",  # kilo.ai/docs/customize/custom-rules
    ".goosehints": "goose",  # block.github.io/goose/docs/guides/using-goosehints
    "CRUSH.md": "crush",  # github.com/charmbracelet/crush
    "CONVENTIONS.md": "aider",  # aider.chat/docs/usage/conventions.html
}
"""The agents that send each prompt file, keyed by a glob relative to the root.

Files for only part of a repository are assumed to be sent with every request.
"""


class UserFile(msgspec.Struct, frozen=True):
    """A user's own prompt file, which one agent sends in all repositories."""

    agent: str
    variable: str
    """The variable that replaces `folder`, in the form of `known_agents.Agent.folders`."""
    folder: str
    """The folder's path, relative to the home folder."""
    name: str


USER_FILES = (
    UserFile("claude-code", "$CLAUDE_CONFIG_DIR", ".claude", "CLAUDE.md"),
    UserFile("codex", "$CODEX_HOME", ".codex", "AGENTS.md"),
    UserFile("gemini-cli", "$GEMINI_CLI_HOME/.gemini", ".gemini", "GEMINI.md"),
    UserFile("qwen-code", "$QWEN_HOME", ".qwen", "QWEN.md"),
    UserFile("opencode", "$XDG_CONFIG_HOME/opencode", ".config/opencode", "AGENTS.md"),
    UserFile("copilot-cli", "$COPILOT_HOME", ".copilot", "copilot-instructions.md"),
    UserFile("kimi-cli", "", ".kimi", "AGENTS.md"),
    UserFile("kimi-code", "$KIMI_CODE_HOME", ".kimi-code", "AGENTS.md"),
    UserFile("pi", "$PI_CODING_AGENT_DIR", ".pi/agent", "AGENTS.md"),
)


PUBLIC_NAMES = frozenset(
    {pattern.rpartition("/")[2] for pattern in RULES} | {user.name for user in USER_FILES}
)
"""File names that reveal nothing about the user and may therefore be sent to a collector."""


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
    for pattern, agents in RULES.items():
        for path in _find_matching(root, pattern)[: _MAX_FILES - len(files)]:
            if not _is_full(files):
                _add_file(files, _read_inside(root, path, frozenset(agents.split())))
    if places is None:
        return list(files.values())
    for file in list(files.values()):
        if "claude-code" in file.agents:
            _add_imports(files, root, file, _MAX_DEPTH)
    for user in USER_FILES:
        folders = places.named_paths(user.variable) or (places.home / user.folder,)
        for folder in dict.fromkeys((*places.from_settings(user.agent), *folders)):
            if (folder / user.name).is_file():
                file = _read_inside(folder, folder / user.name, frozenset({user.agent}))
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
        for pattern in RULES
    )
