"""Finds the prompt files that coding agents send with every request, and computes their cost.

Symbolic links are resolved first. A prompt file in a repository must be inside the root
folder, and a user's own prompt file must be inside the agent's folder.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from sidecar.cost.cost_protocol import CostFilesParams, FileCost
from sidecar.cost.prompt_file_costs import CallGroup, PromptFileCost, prompt_file_cost
from sidecar.counting.count_result import Count, method_mark, tokens_text
from sidecar.counting.open_documents import Snapshot
from sidecar.errors import SidecarError
from sidecar.text.printable import cost_text, counted, percent_text, printable

if TYPE_CHECKING:
    from sidecar.agents.folders import Places
    from sidecar.cost.records import Identity, Record
    from sidecar.workspace.services import Services
    from sidecar.workspace.workspace import Workspace

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


_PUBLIC_NAMES = frozenset(
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


DAYS = 30


async def file_costs(
    services: Services,
    workspace: Workspace,
    params: CostFilesParams,
    *,
    reported: Iterable[str] | None = None,
) -> list[FileCost]:
    """Return each prompt file's cost in a workspace, most expensive first.

    Args:
        services: The shared services.
        workspace: The workspace.
        params: The files and the time range.
        reported: The URIs of all workspaces, if each workspace is reported to a collector
            separately. Calls in other worktrees are then excluded. For the user's own files,
            calls in nested workspaces are excluded as well.

    Raises:
        BadParamsError: A time is invalid.
        LedgerError: The ledger cannot be read.
    """
    if workspace.path is None:
        return []
    run = services.workers.run
    files = await run(partial(_read_prompt_files, workspace, params.uris))
    since = params.since or (datetime.now().astimezone() - timedelta(days=DAYS)).date().isoformat()
    spending = services.spending(workspace)
    used = await run(partial(spending.count_calls_by_agent_and_model, since, params.until))
    models = [_most_called_model(file, used) or workspace.budget_model for file in files]
    counts = [
        await _count_file(services, workspace, file, model)
        for file, model in zip(files, models, strict=True)
    ]
    sizes = [count.tokens for count in counts if count is not None]
    calls = partial(spending.prompt_file_calls, since, params.until, sizes)
    read = partial(calls, with_worktrees=reported is None)
    below = f"{(workspace.uri or '').rstrip('/')}/"
    nested = [uri for uri in reported or () if uri.startswith(below)]
    groups = await run(read)
    own_groups = await run(partial(read, without=nested)) if nested else groups
    span = f"since {params.since}" if params.since else f"in {DAYS} days"
    if params.until:
        span = f"from {since} to {params.until}"
    rows = [
        _make_row(file, count, own_groups if file.is_own else groups, span)
        for file, count in zip(files, counts, strict=True)
    ]
    return sorted(rows, key=lambda row: (-(row.cost_usd or 0.0), row.uri))


def file_records(files: Iterable[FileCost], root: str, identity: Identity) -> list[Record]:
    """Convert prompt file costs to records for a collector. The records contain no paths.

    Args:
        files: The files' costs. Files that were never sent are skipped.
        root: The workspace's URI.
        identity: The identity to include in the records.
    """
    from sidecar.cost.records import file_record

    records = []
    for file in files:
        name = unquote(file.uri).rpartition("/")[2]
        if file.requests:
            public = name if name in _PUBLIC_NAMES else ""
            records.append(file_record(file, public, root, time.time_ns(), identity))
    return records


async def describe_prompt_file_cost(services: Services, uri: str) -> str:
    """Describe a prompt file's recorded cost. Returns "" for other files."""
    workspace = services.roots.of_document(uri)
    below = workspace.path_below(uri)
    if workspace.path is None or below is None or not is_prompt_file(below.as_posix()):
        return ""
    own_uri = (workspace.path / below).as_uri()  # the document may be open through a link
    try:
        rows = await file_costs(services, workspace, CostFilesParams(uris=[own_uri]))
    except SidecarError:  # the error is shown in cost reports
        return ""
    return rows[0].text if rows else ""


def is_prompt_file(relative: str) -> bool:
    """Return whether any agent sends the file with this path, relative to the root."""
    return any(
        fnmatchcase(relative, pattern) and relative.count("/") == pattern.count("/")
        for pattern in RULES
    )


def _read_prompt_files(workspace: Workspace, uris: Sequence[str] | None) -> list[PromptFile]:
    from sidecar.agents.folders import Places

    settings = workspace.settings.agents
    places = Places.of(settings) if settings.enabled else None
    files = prompt_files(workspace.path or Path(), places)
    wanted = None if uris is None else {unquote(uri) for uri in uris}
    return [file for file in files if wanted is None or unquote(Path(file.path).as_uri()) in wanted]


def _most_called_model(file: PromptFile, used: Mapping[str, Mapping[str, int]]) -> str | None:
    calls = Counter[str]()
    for agent in file.agents:
        calls.update(used.get(agent, {}))
    return min(calls, key=lambda model: (-calls[model], model), default=None)


async def _count_file(
    services: Services, workspace: Workspace, file: PromptFile, model: str
) -> Count | None:
    if file.text is None:
        return None
    uri = Path(file.path).as_uri()
    text = file.text if uri not in services.documents else services.documents.snapshot(uri).text
    return await services.counts.count(Snapshot(text=text), model, workspace)


def _make_row(
    file: PromptFile, count: Count | None, groups: list[CallGroup], span: str
) -> FileCost:
    uri = Path(file.path).as_uri()
    if count is None:
        return FileCost(
            uri=uri,
            tokens=None,
            requests=0,
            cost_usd=None,
            cached_percent=None,
            text=file.note or "",
        )
    cost = prompt_file_cost(count.tokens, file.agents, groups)
    return FileCost(
        uri=uri,
        tokens=count.tokens,
        requests=cost.requests,
        cost_usd=None if cost.cost is None else float(cost.cost),
        cached_percent=100 * cost.cached // cost.requests if cost.requests else None,
        text=_row_text(count, cost, span),
        model=count.model,
        method=count.method,
        unpriced=cost.unpriced,
    )


def _row_text(count: Count, cost: PromptFileCost, span: str) -> str:
    head, model = tokens_text(count.tokens, count.method), f"counted for {printable(count.model)}"
    if not cost.requests:
        return f"{head} · no requests {span} · {model}"
    price = "unpriced"
    if cost.cost is not None:
        is_estimate = bool(method_mark(count.method))
        price = cost_text(cost.cost, is_partial=bool(cost.unpriced), is_estimate=is_estimate)
        if cost.unpriced:
            price += f" + {counted(cost.unpriced, 'request')} unpriced"
    share = percent_text(100 * cost.cached // cost.requests)
    requests = counted(cost.requests, "request")
    return f"{head} · {requests} {span} · {price}, {share} from cache · {model}"
