"""Claude Code: `projects/<slug of the folder>/<session>.jsonl`, with sub-agents in subfolders.

Each content block of a message has a line with the usage so far, so the largest output counts.
Resumed sessions, forks and sidechains repeat messages under the same id.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.contents import ContextContents
from sidecar.agents.events import CallFinished, SessionSnapshot, Store, StoreRead, StoreReader
from sidecar.agents.fields import parse_iso_time, parse_usd, provider_of
from sidecar.agents.homes import agent_folders
from sidecar.agents.listing import find_files, list_folder, store_from_path, stores_from_entry
from sidecar.agents.readers.claude_costs import CostCheck
from sidecar.agents.readers.claude_lines import (
    TITLES,
    ClaudeMessage,
    MessageUsage,
    TranscriptLine,
    add_content_line,
    decode,
    decode_content_line,
    five_minutes,
    reading_of,
    sum_of,
    tier_of,
    usage_of,
)
from sidecar.agents.stores import (
    Lines,
    SessionState,
    first_records,
    read_lines,
    read_records,
    record_at,
)

if TYPE_CHECKING:
    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots
    from sidecar.agents.values import StoredSession

AGENT = "claude-code"
_LONGEST_SLUG = 200
_SMALL_WINDOW, _LARGE_WINDOW = 200_000, 1_000_000
_HEAD = 64 << 10


class ClaudeCode(StoreReader):
    """See `sidecar.agents.events.StoreReader`."""

    agent = AGENT

    def folders(self, places: Places) -> tuple[str, ...]:
        return tuple(str(folder) for folder in _project_folders(places))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        slugs = (
            None
            if roots is None
            else (*map(_project_name_prefix, roots.paths), *_custom_folder_names(places))
        )
        for projects in _project_folders(places):
            for project in list_folder(projects):
                if project.is_dir():
                    ours = slugs is None or project.name.startswith(slugs)
                    yield from (
                        _stores_of_project(project.path) if ours else _newest_store(project.path)
                    )

    def store_at(self, places: Places, path: str) -> Store | None:
        for projects in _project_folders(places):
            parts = _parts_below(projects, path)
            if parts and path.endswith(".jsonl"):
                if len(parts) == 2:
                    return store_from_path(AGENT, path, live=not parts[1].startswith("agent-"))
                if len(parts) > 3 and parts[2] == "subagents" and parts[-1].startswith("agent-"):
                    return store_from_path(AGENT, path, live=False)
        return None

    def is_copy(self, store: Store) -> bool:
        """Return whether this is a background fork, which starts with its parent's lines."""
        for line in first_records(store, decode, _HEAD):
            if line.session_kind or line.cwd:
                return line.session_kind == "bg"
        return False

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        return read_lines(store, state, partial(_Transcript.of, store))

    def title(self, store: Store, title_at: str) -> str | None:
        line = record_at(store, title_at, decode)
        return line.title if line else None

    def contents(self, path: str, session: str) -> ContextContents:  # noqa: ARG002
        contents, tools = ContextContents(), dict[str, str]()
        for line in read_records(path, decode_content_line):
            add_content_line(line, contents, tools)
        return contents

    def window(self, places: Places, session: StoredSession) -> int | None:  # noqa: ARG002
        small = places.variable("CLAUDE_CODE_DISABLE_1M_CONTEXT")
        return _SMALL_WINDOW if small else None


READER = ClaudeCode()


class _Transcript(msgspec.Struct):
    session: SessionState
    is_live: bool
    """Whether the transcript may contain a main conversation."""
    timestamp: str | None = None
    """The newest time in the file."""
    folder: str = ""
    """The newest folder in the file."""
    message: str | None = None
    """The newest message of the main conversation."""
    titles: dict[str, str] = {}
    """Position of the newest title of each kind."""
    costs: CostCheck = msgspec.field(default_factory=CostCheck)
    own_cost: float = 0.0
    """The session's USD in the newest `cost-state`."""
    newest_call: CallFinished | None = None
    """The newest call of the main conversation."""

    @classmethod
    def of(cls, store: Store) -> _Transcript:
        return cls(SessionState(Path(store.path).stem), store.live)

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        """Yield the calls of these lines, each once with its largest output."""
        replies: dict[str, tuple[int, TranscriptLine]] = {}
        newest: str | None = None
        for line in lines.records(decode):
            # A line without a time has that of the line before it.
            line.timestamp = self.timestamp = line.timestamp or self.timestamp
            self.folder = line.cwd or self.folder
            call = line.call
            self._apply(line, call, lines)
            if line.type == "cost-state":
                yield from self._summary_calls(line, lines.path)
                self._keep_call(newest, replies)
                yield from self._call_with_own_cost(line)
            if call is None:
                continue
            message, usage = call
            name = message.id or line.request_id or line.uuid or str(line.timestamp)
            output, known = usage.output_tokens or 0, replies.get(name)
            if known is None or known[0] <= output:
                replies[name] = output, line
                newest = newest if line.is_sidechain else name
            self.costs.add_message(name, message.model, usage)
        self._keep_call(newest, replies)
        for name, (_, line) in replies.items():
            yield from _calls_of_line(name, line, self.session.id)

    def snapshots(self) -> Iterator[SessionSnapshot]:
        session = self.session
        if not self.is_live:
            return
        session.title_at = next(filter(None, map(self.titles.get, TITLES)), None)
        yield session.snapshot()

    def _apply(
        self, line: TranscriptLine, call: tuple[ClaudeMessage, MessageUsage] | None, lines: Lines
    ) -> None:
        session = self.session
        if (title_kind := line.title_kind) is not None:
            self.titles[title_kind] = lines.position
        if line.is_sidechain:
            return
        session.at = parse_iso_time(line.timestamp) or session.at
        session.work_in(line.cwd)
        if line.type in ("user", "assistant"):
            session.active = not line.ends_turn
        if line.subtype == "compact_boundary":
            self.costs.compacted_model = session.model
            left = line.compact_metadata.post_tokens if line.compact_metadata else None
            session.track = session.track.compaction().estimate(left or 0, None)
        elif line.is_compact_summary:
            if not session.track.is_estimate:
                session.track = session.track.compaction()
        elif call is not None and not line.is_api_error_message:
            self._measure(*call)

    def _measure(self, message: ClaudeMessage, usage: MessageUsage) -> None:
        session, reading = self.session, reading_of(message, usage)
        known = session.track.newest
        if known is not None and message.id is not None and message.id == self.message:
            reading = msgspec.structs.replace(reading, output=max(reading.output, known.output))
        if message.model != session.model:
            session.window = None
        if reading.prompt > _SMALL_WINDOW:  # the model's name is written without `[1m]`
            session.window = _LARGE_WINDOW
        self.message, session.model = message.id, message.model
        session.track = session.track.call(reading)

    def _summary_calls(self, line: TranscriptLine, path: str) -> Iterator[CallFinished]:
        made, at = self.costs.apply(line, path), parse_iso_time(line.timestamp)
        if made is None or at is None:
            return
        model, usage = made
        yield CallFinished(
            at=at,
            agent=AGENT,
            session=line.session_id or self.session.id,
            model=model,
            provider=provider_of(model) or "anthropic",
            usage=usage,
            request=f"summary/{at.isoformat()}/{usage.prompt_tokens}/{usage.output_tokens}",
            workspace=self.folder,
            category="summary",
        )

    def _keep_call(self, name: str | None, replies: dict[str, tuple[int, TranscriptLine]]) -> None:
        call = next(_calls_of_line(name, replies[name][1], self.session.id), None) if name else None
        known = self.newest_call
        if call is not None and known is not None and call.request == known.request:
            call = msgspec.structs.replace(call, agent_cost_usd=known.agent_cost_usd)
        self.newest_call = call or known

    def _call_with_own_cost(self, line: TranscriptLine) -> Iterator[CallFinished]:
        total = sum(one.cost_usd or 0.0 for one in (line.model_usage or {}).values())
        # The agent begins at 0 again when a session is resumed.
        new = total - self.own_cost if total >= self.own_cost else total
        call, self.own_cost = self.newest_call, total
        if call is None or new <= 0:
            return
        cost = parse_usd(new + float(call.agent_cost_usd or 0))
        self.newest_call = msgspec.structs.replace(call, agent_cost_usd=cost)
        yield self.newest_call


def _calls_of_line(request: str, entry: TranscriptLine, session: str) -> Iterator[CallFinished]:
    at = parse_iso_time(entry.timestamp)
    if entry.call is None or at is None:
        return
    message, usage = entry.call
    model = message.model or "unknown"
    parts = usage.iterations or ()
    own = [part for part in parts if part.model in (None, message.model)]
    numbers = sum_of(own) if len(own) > 1 else usage_of(usage)
    call = CallFinished(
        at=at,
        agent=AGENT,
        session=entry.session_id or session,
        model=model,
        provider=provider_of(model) or "anthropic",
        usage=numbers,
        request=request,
        workspace=entry.cwd or "",
        category="subagent" if entry.is_sidechain else "main",
        tier=tier_of(usage),
        cache_write_5m_tokens=five_minutes(numbers, usage),
        web_searches=usage.searches,
    )
    yield call
    others = [part for part in parts if part.model not in (None, message.model)]
    for index, part in enumerate(others):
        yield msgspec.structs.replace(
            call,
            model=part.model,
            usage=usage_of(part),
            request=f"{request}/{index}",
            cache_write_5m_tokens=0,
            web_searches=0,
        )


def _project_folders(places: Places) -> Iterator[Path]:
    for folder in agent_folders(places, AGENT):
        yield folder if folder.name == "projects" else folder / "projects"


def _stores_of_project(folder: str) -> Iterator[Store]:
    for entry in list_folder(folder):
        if entry.name.endswith(".jsonl"):
            yield from stores_from_entry(AGENT, entry, live=_is_main(entry.name))
        elif entry.is_dir():
            agents = os.path.join(entry.path, "subagents")
            for found in find_files(AGENT, agents, ".jsonl", live=False):
                if os.path.basename(found.path).startswith("agent-"):
                    yield found


def _newest_store(folder: str) -> list[Store]:
    """Return the newest session in a folder whose name does not match its project.

    The folder may have been renamed. Sub-agents' folders are skipped.
    """
    names = (one for one in list_folder(folder) if _is_main(one.name))
    stores = (found for entry in names for found in stores_from_entry(AGENT, entry))
    return sorted(stores, key=lambda found: found.mtime_ns)[-1:]


def _is_main(name: str) -> bool:
    return name.endswith(".jsonl") and not name.startswith("agent-")


def _project_name_prefix(path: str) -> str:
    """Return the prefix that names of project folders at or below `path` share.

    Several paths may have the same name; the sessions' lines contain the real path.
    """
    name = re.sub(r"[^a-zA-Z0-9]", "-", unicodedata.normalize("NFC", path))
    return name[:_LONGEST_SLUG]


def _custom_folder_names(places: Places) -> tuple[str, ...]:
    name = places.variable("CLAUDE_CODE_PROJECT_DIR_NAME")
    return (name,) if name else ()


def _parts_below(folder: Path, path: str) -> tuple[str, ...]:
    with suppress(ValueError):
        return Path(path).relative_to(folder).parts
    return ()
