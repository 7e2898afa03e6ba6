"""Counts what coding agents send before the first word, and compares it with measured requests.

A system prompt's size is what remains of the newest first request without the files on disk. It is
kept, because it can only be calculated until one of these files changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar import typed
from sidecar.agents.branches import resolve
from sidecar.agents.reader_registry import Sources
from sidecar.config.checks import similar_agents
from sidecar.config.paths import state_dir
from sidecar.config.safe_files import lock_state, make_folder, read_file, stamp_of, write
from sidecar.counting.count_result import Measure
from sidecar.errors import BadParamsError
from sidecar.project.footprint import Footprint, Part, agents_with_files, find_for_model
from sidecar.project.git import find_top
from sidecar.project.loading_rules import loading_rules, model_of_agent
from sidecar.project.mcp_servers import ServerTools, find_mcp_servers, read_kept, sent_tools
from sidecar.project.source_files import SourceFiles
from sidecar.text.printable import printable
from sidecar.workspace.footprint_report import (
    ELSEWHERE,
    AgentFootprint,
    FootprintParams,
    FootprintPart,
    FootprintReport,
    KeptPrompt,
    MeasuredRequest,
    agent_footprint,
    fits,
    loss_notes,
    mcp_parts,
    name_in_tools,
    next_step,
    report_lines,
    short_forms,
    short_path,
    state_text,
    time_of,
)
from sidecar.workspace.one_off_counts import run_with_counters

if TYPE_CHECKING:
    from sidecar.agents.first_requests import AgentUse, FirstRequest
    from sidecar.config.settings import Settings
    from sidecar.cost.ledger import Ledger
    from sidecar.counting.tokenizer_choice import ChooseCounter
    from sidecar.workspace.services import Services
    from sidecar.workspace.workspace import Workspace

MOST_READ = 64 << 20
"""The most bytes of new session data to read for a footprint."""
_FILE_NAME = "system-prompts.json"
_MOST_KEPT = 500


class _Found(NamedTuple):
    """An agent's files, and how the agent was last used in the folder."""

    model: str
    footprint: Footprint
    use: AgentUse | None
    tools: list[ServerTools]
    """What the agent sends of the tools of MCP servers."""
    mcp_texts: dict[str, str]
    """What the newest session has of the tools of servers that were not measured, by server."""
    start: Path
    files: str = ""
    """The digest of the files that were in the first request."""
    change: str = ""
    """Why the files are not those of the newest session, as a sentence."""
    kept: KeptPrompt | None = None
    """The system prompt that was last measured."""

    @property
    def texts(self) -> list[str]:
        """The texts to count."""
        return [*(part.text for part in self.footprint.parts), *self.mcp_texts.values()]

    @property
    def measured(self) -> MeasuredRequest | None:
        first = self.use.first if self.use else None
        return first and MeasuredRequest(
            session=first.session, model=first.model, at=time_of(first.at_ms), tokens=first.tokens
        )

    def keep(self, tokens: int) -> None:
        """Keep the size of the system prompt that was measured."""
        first = self.use.first if self.use else None
        if first is None:
            return
        prompt = KeptPrompt(
            session=first.session,
            files=self.files,
            model=first.model,
            tokens=tokens,
            at_ms=first.at_ms,
        )
        if prompt != self.kept:
            with suppress(OSError):
                keep_prompt(state_dir(), self.footprint.agent, self.start, prompt)


async def footprints_of(
    services: Services,
    workspace: Workspace,
    params: FootprintParams,
    *,
    finds_uses: bool = True,
) -> FootprintReport:
    """Return the answer to `context/footprint`, by sessions that were read. See `find_footprints`.

    Raises:
        BadParamsError: The folder is not in the workspace, the agent is unknown, or agents are
            disabled.
    """
    root, start = workspace.path, _start_folder(workspace, params.folder)
    if root is None or start is None:
        raise BadParamsError("`folder` must be in a root folder, as a URI or an absolute path")
    settings, spending = workspace.settings, services.spending(workspace)
    model, width = workspace.context.chosen or workspace.loaded.configured_model, params.width or 0
    return await services.workers.run(
        lambda: find_footprints(
            root, start, settings, model, spending.book.ledger, params.agent, width,
            finds_uses=finds_uses,
        )
    )  # fmt: skip


def _start_folder(workspace: Workspace, folder: str | None) -> Path | None:
    from sidecar.workspace.workspace import path_of

    if folder is None:
        return workspace.path
    path = path_of(folder) if "://" in folder else Path(folder)
    if path is None or not path.is_absolute() or workspace.path_below(path.as_uri()) is None:
        return None
    return Path(path)


def find_footprints(
    root: Path,
    start: Path,
    settings: Settings,
    model: str | None,
    ledger: Ledger,
    agent: str | None,
    width: int = 0,
    *,
    most_read: int = 0,
    finds_uses: bool = True,
) -> FootprintReport:
    """Return what each agent sends before the first word. This function blocks.

    Args:
        root: The root folder, whose counts are cached together.
        start: The folder in which the agents start.
        settings: The settings of the root.
        model: The model that the user has chosen, for agents that were not used in the folder.
        ledger: The user's ledger.
        agent: The only agent to show. Defaults to all that are installed or, if there are none, to
            all that send files of the folder.
        width: The width of the report's text in columns. If it is 0, lines are not shortened.
        most_read: The most bytes of new session data to read into the ledger first.
        finds_uses: Whether to look for measured requests in sessions.

    Raises:
        BadParamsError: The agent is unknown, or agents are disabled.
    """
    sources = Sources.of(settings.agents, str(root))
    if sources is None:
        raise BadParamsError("coding agents are disabled; set `enabled = true` in [agents]")
    if agent is not None and agent not in loading_rules():
        near = similar_agents([agent], loading_rules())
        known = ", ".join(loading_rules())
        hint = f"did you mean {near[0]}?" if near else f"known agents: {known}"
        raise BadParamsError(f"no loading rules are known for {agent}; {hint}")
    uses = _find_uses(ledger, sources, start, most_read) if finds_uses else {}
    files = SourceFiles()
    used = {*uses, *(reader.agent for reader in sources.readers)}
    shown = [one for one in loading_rules() if one in used] if agent is None else [agent]
    rest = [] if agent else [one for one in loading_rules() if one not in used]
    others = list(agents_with_files(start, sources.places, files, rest))
    if not shown:
        shown, others = others, []
    found = [_find(one, start, sources, files, uses.get(one), settings, model) for one in shown]
    texts: dict[str, list[str]] = {}
    for one in found:
        texts.setdefault(one.model, []).extend(filter(None, one.texts))
    measures = count_sent_texts(root, settings, texts)
    folders = short_forms(root, start, sources.places.home)
    agents = [_describe(one, measures, folders) for one in found]
    report = FootprintReport(
        folder=start.as_uri(), agents=agents, others=others, next_step=next_step(agents)
    )
    return msgspec.structs.replace(report, text="\n".join(report_lines(report, width)))


def _find_uses(
    ledger: Ledger, sources: Sources, start: Path, most_read: int
) -> dict[str, AgentUse]:
    if not sources.readers:
        return {}  # avoids loading the ledger
    from sidecar.agents.first_requests import find_uses, read_sessions
    from sidecar.cost.ledger import LedgerError

    with suppress(LedgerError):  # cost reports show this error
        if most_read:
            read_sessions(ledger, sources, most_read)
        return find_uses(ledger, sources, start)
    return {}


def _find(
    agent: str,
    start: Path,
    sources: Sources,
    files: SourceFiles,
    use: AgentUse | None,
    settings: Settings,
    chosen: str | None,
) -> _Found:
    first = use.first if use else None
    used = first.model if first else use.model if use else None
    model = model_of_agent(agent, used, settings.model, chosen)
    window = use.window if use else None
    places = sources.places
    footprint = find_for_model(agent, start, places, files, model, window)
    digest, change, prompt = "", "", read_kept_prompt(state_dir(), agent, start) if use else None
    if use is not None and (first := use.first) is not None:
        digest = digest_files(footprint, start)
        there = start if first.folder == resolve(str(start)) else Path(first.folder)
        sent = footprint
        if there != start and first.folder:
            sent = find_for_model(agent, there, places, SourceFiles(), model, window)
        if not first.folder or digest_files(sent, there) != digest:
            change, use = ELSEWHERE, use._replace(first=None)
        elif prompt is None or prompt.session != first.session:
            change = describe_changes(sent, there, first.began_ms)
        elif prompt.files != digest:
            change = "Files have changed"
    servers = find_mcp_servers(agent, start, places)
    kept = read_kept(state_dir()) if servers else {}
    tools = [sent_tools(server, model, kept, places.env) for server in servers]
    measured = {name_in_tools(sent.server.name) for sent in tools if sent.tokens is not None}
    texts = _mcp_texts(agent, sources, use.first) if use and use.first else {}
    unmeasured = {name: text for name, text in texts.items() if name not in measured}
    return _Found(model, footprint, use, tools, unmeasured, start, digest, change, prompt)


def _mcp_texts(agent: str, sources: Sources, first: FirstRequest) -> dict[str, str]:
    """Return what the files of a session have of the tools of MCP servers."""
    reader = next((one for one in sources.readers if one.agent == agent), None)
    with suppress(OSError):
        return reader.mcp_texts(first.path) if reader else {}
    return {}


def count_sent_texts(
    root: Path, settings: Settings, texts: Mapping[str, Iterable[str]]
) -> dict[tuple[str, str], Measure]:
    """Count what agents send, with the cache of `check`. This function blocks.

    Args:
        root: The root folder, whose counts are cached together.
        settings: The root's settings.
        texts: The texts to count for each model.

    Returns:
        The counts by model and text.
    """
    from sidecar.budgets.check_cache import (
        decode_counts,
        drop_unused,
        file_stamps,
        load_cache,
        save_cache,
    )
    from sidecar.counting.open_documents import Snapshot
    from sidecar.counting.tokenizer_choice import ContentCounter

    cache = load_cache(root)
    contents = decode_counts(cache)

    def count(choose: ChooseCounter) -> dict[tuple[str, str], Measure]:
        counter = ContentCounter(choose, contents, file_stamps(settings))
        measures = dict[tuple[str, str], Measure]()
        for model, of_model in texts.items():
            distinct = list(dict.fromkeys(of_model))
            snapshots = [Snapshot(text=text) for text in distinct]
            choices = counter.choose_counters(snapshots, model)
            for text, choice in zip(distinct, choices, strict=True):
                measures[model, text] = choice.measure(text)
        if counter.has_new:
            drop_unused(cache, contents, cache.entries)
            save_cache(root, cache)
        return measures

    return run_with_counters(settings, texts, lambda _, choose: count(choose))


def _describe(
    found: _Found, measures: Mapping[tuple[str, str], Measure], folders: Sequence[tuple[str, str]]
) -> AgentFootprint:
    def measure(text: str) -> Measure:
        return measures[found.model, text] if text else Measure(0, "exact", "")

    files = [_describe_part(part, measure(part.text), folders) for part in found.footprint.parts]
    in_session = {name: measure(text) for name, text in found.mcp_texts.items()}
    first = found.use.first if found.use else None
    files = [*mcp_parts(found.tools, in_session, found.measured), *files]
    described = agent_footprint(
        found.footprint,
        found.model,
        files,
        measured=found.measured,
        message_tokens=first.message_tokens if first else None,
        change=found.change,
        kept=found.kept if found.kept and found.kept.model == found.model else None,
        losses=loss_notes(found.footprint.problems, folders),
    )
    system = described.parts[0].tokens
    if system is not None and fits(found.measured, files, found.change):
        found.keep(system)
    return described


def _describe_part(
    part: Part, measure: Measure, folders: Sequence[tuple[str, str]]
) -> FootprintPart:
    hidden_by = short_path(part.hidden_by, folders) if part.hidden_by else ""
    is_unread = part.state in ("sent", "cut") and not part.text
    lost = sum(each.end - each.start for each in part.lost)
    return FootprintPart(
        kind=part.kind,
        label=short_path(part.path, folders),
        uri=Path(part.path).as_uri(),
        state=part.state,
        state_text=state_text(part.state, printable(part.reason), hidden_by, lost),
        tokens=None if is_unread else measure.tokens,
        method=measure.method,
        error_percent=measure.error_percent,
        is_own=part.is_own,
        hidden_by=Path(part.hidden_by).as_uri() if part.hidden_by else None,
        lost=list(part.lost),
    )


def digest_files(footprint: Footprint, start: Path) -> str:
    """Return a digest of what is sent of the files, with paths relative to a folder."""
    top = str(_up_to_root(start)[-1])
    sent = [
        (
            part.path if part.is_own else os.path.relpath(part.path, start),
            part.state,
            part.text.replace(top, ""),  # lists of skills contain their paths
        )
        for part in footprint.parts
        if part.state not in ("later", "hidden")
    ]
    return _digest(repr(sent))


def read_kept_prompt(folder: Path, agent: str, start: Path) -> KeptPrompt | None:
    """Return what was last measured for an agent in a folder. Never raises."""
    return _read_all(folder).get(_key(agent, start))


def keep_prompt(folder: Path, agent: str, start: Path, prompt: KeptPrompt) -> None:
    """Keep what was measured in the state folder. Raises OSError."""
    make_folder(folder)
    with lock_state(folder):
        kept = {**_read_all(folder), _key(agent, start): prompt}
        newest = sorted(kept.items(), key=lambda one: one[1].at_ms)[-_MOST_KEPT:]
        write(folder / _FILE_NAME, msgspec.json.encode(dict(newest)))


def _read_all(folder: Path) -> dict[str, KeptPrompt]:
    with suppress(OSError, msgspec.DecodeError):
        return typed.decode_leniently(read_file(folder / _FILE_NAME), dict[str, KeptPrompt])
    return {}


def _key(agent: str, start: Path) -> str:
    return _digest(repr((agent, str(start))))


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def describe_changes(footprint: Footprint, start: Path, since_ms: int) -> str:
    """Return what may have changed in the files since a time, or an empty string.

    A file's status changes even if its old time is restored. That a file was deleted shows in its
    folder only.
    """
    since_ns = since_ms * 1_000_000
    files = {part.path for part in footprint.parts if part.text or part.kind == "rule"}
    # A file without a part is empty now, but may have had text.
    files |= set(_named_files(footprint.agent, start)) - {part.path for part in footprint.parts}
    changed = sum(_has_changed_since(path, since_ns) for path in files)
    if changed:
        return "1 file has changed" if changed == 1 else f"{changed:,} files have changed"
    folders = _folders(footprint.agent, start)
    if any((stamp := stamp_of(folder)) and stamp[1] > since_ns for folder in folders):
        return "Files may have been added or deleted"
    return ""


def _has_changed_since(path: str, since_ns: int) -> bool:
    stamp = stamp_of(path)
    return stamp is not None and max(stamp[1:3]) > since_ns


def _folders(agent: str, start: Path) -> Iterator[str]:
    """Yield the project's folders in which the agent looks for files."""
    names = [name for one in loading_rules()[agent].entries for name in one.files]
    names += loading_rules()[agent].names
    inner = {os.path.dirname(name.partition("*")[0]) for name in names if name[0] not in "~${"}
    for top in _up_to_root(start):
        yield from (os.path.join(top, name) for name in inner)


def _named_files(agent: str, start: Path) -> Iterator[str]:
    """Yield the paths of the project's instructions, which may not exist."""
    for top in _up_to_root(start):
        for name in loading_rules()[agent].names:
            if "*" not in name and name[0] not in "~${":
                yield os.path.join(top, name)


def _up_to_root(start: Path) -> list[Path]:
    """Return a folder and those above it, up to the repository's root if there is one."""
    top = find_top(start) or start
    return [one for one in (start, *start.parents) if one.is_relative_to(top)]
