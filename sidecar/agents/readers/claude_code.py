"""Claude Code: `projects/<slug of the folder>/<session>.jsonl`, sub-agents in folders below.

A message comes in one line a content block, each with the usage so far: the largest output counts.
Resumed and forked sessions and sidechains repeat messages by their id.
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

from sidecar.agents.fields import provider_of, when
from sidecar.agents.folding import Folded, fold_lines
from sidecar.agents.homes import homes
from sidecar.agents.line_files import Decoded, Newest
from sidecar.agents.listing import below, entries, listed, stat_of
from sidecar.agents.occupancy import COMPACTED, Track
from sidecar.agents.readers.claude_costs import CostCheck, parts_of
from sidecar.agents.readers.claude_lines import (
    TranscriptLine,
    decode,
    five_minutes,
    reading_of,
    sum_of,
    tier_of,
    usage_of,
)
from sidecar.agents.tail import first_lines, lines_with_any
from sidecar.agents.values import Batch, Call, Found, Glance, Mark

if TYPE_CHECKING:
    from datetime import datetime

    from sidecar.agents.places import Places
    from sidecar.agents.reader import Look
    from sidecar.agents.roots import Roots
    from sidecar.messages.usage import Usage

AGENT = "claude-code"
_LONGEST_SLUG = 200
_SMALL_WINDOW, _LARGE_WINDOW = 200_000, 1_000_000
_HEAD = 64 << 10
_NEEDLES = (b'"usage"', b'"cost-state"', b'"compact_boundary"')
_TITLES = ("custom_title", "ai_title", "summary")


class ClaudeCode:
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT

    def folders(self, places: Places) -> tuple[str, ...]:
        return tuple(str(folder) for folder in _projects(places))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:
        slugs = None if roots is None else (*map(_slug, roots.paths), *_given(places))
        for projects in _projects(places):
            for project in entries(projects):
                if project.is_dir():
                    ours = slugs is None or project.name.startswith(slugs)
                    yield from _of_project(project.path) if ours else _newest(project.path)

    def store_at(self, places: Places, path: str) -> Found | None:
        for projects in _projects(places):
            parts = _below(projects, path)
            if parts and path.endswith(".jsonl"):
                if len(parts) == 2:
                    return stat_of(AGENT, path, live=not parts[1].startswith("agent-"))
                if len(parts) > 3 and parts[2] == "subagents" and parts[-1].startswith("agent-"):
                    return stat_of(AGENT, path, live=False)
        return None

    def glance(self, look: Look) -> Glance:
        found = look.found
        start = look.before.memory if look.before else _first_entry(found.path)
        newest = _Newest()
        newest.look(found.path, decode)
        cwd = next(filter(look.roots.hold, (newest.cwd, start.cwd)), None)
        if cwd is None:
            return Glance(found, memory=start, skipped=newest.skipped)
        small = bool(look.places.variable("CLAUDE_CODE_DISABLE_1M_CONTEXT"))
        window, title = _window(newest.track, small=small), newest.title or start.summary
        session = newest.session(found, Path(found.path).stem, cwd, title=title, window=window)
        return Glance(found, (session,), newest.skipped, start)

    def is_copy(self, found: Found) -> bool:
        """A background fork copies its parent's lines and names no parent; its kind shows it."""
        return _first_entry(found.path).session_kind == "bg"

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        return fold_lines(found, mark, _State(Path(found.path).stem), partial(_fold, found.path))


READER = ClaudeCode()


class _Newest(Newest[TranscriptLine]):
    """What the lines of a transcript say, from the newest back to the last call."""

    def __init__(self) -> None:
        super().__init__()
        self.cwd: str | None = None
        self._titles: dict[str, str] = {}
        self._message: str | None = None

    @property
    def title(self) -> str | None:
        """The user's own title before the agent's, and that before an old summary."""
        return next((self._titles[kind] for kind in _TITLES if kind in self._titles), None)

    def take(self, entry: TranscriptLine) -> bool:
        for kind in _TITLES:
            if title := getattr(entry, kind):
                self._titles.setdefault(kind, title)
        if entry.is_sidechain:
            return False
        self.at, self.cwd = self.at or when(entry.timestamp), self.cwd or entry.cwd
        if entry.subtype == "compact_boundary" or entry.is_compact_summary:
            if self._is_measured:
                return True
            left = entry.compact_metadata.post_tokens if entry.compact_metadata else None
            if self.track.newest is None:  # the newest compaction counts
                self.track = self.track.compaction().estimate(left or 0, None)
            return False
        return self._take(entry)

    @property
    def _is_measured(self) -> bool:
        return self.track.newest is not None and not self.track.is_estimate

    def _take(self, entry: TranscriptLine) -> bool:
        if self.active is None and entry.type in ("user", "assistant"):
            self.active = not entry.ends_turn
        if entry.call is None or entry.is_api_error_message:
            return False
        message, usage = entry.call
        if self.track.why == COMPACTED or self.track.is_estimate:
            self.model = message.model
            return True
        reading, newest = reading_of(message, usage), self.track.newest
        if newest is None:
            self.track, self._message = self.track.call(reading), message.id
            return False
        if message.id is None or message.id != self._message:
            return True
        larger = max(reading.output, newest.output)
        self.track = self.track.call(msgspec.structs.replace(newest, output=larger))
        return False


def _window(track: Track, *, small: bool) -> int | None:
    """What is known of the window beside the model's name, which is written without `[1m]`."""
    newest = track.newest
    if newest is not None and newest.prompt > _SMALL_WINDOW:
        return _LARGE_WINDOW
    return _SMALL_WINDOW if small else None


class _State(msgspec.Struct, frozen=True):
    """Of a transcript, after some of its lines."""

    session: str
    workspace: str = ""
    timestamp: str | None = None
    """Of the newest line that has one."""
    costs: CostCheck = msgspec.field(default_factory=CostCheck)


def _fold(path: str, state: _State, data: bytes) -> Folded[_State]:
    """The calls in some lines; each message once, with the most output that its lines give.

    A line without a time has that of the line before it.
    """
    replies: dict[str, tuple[int, TranscriptLine]] = {}
    summaries: list[Call] = []
    costs, folder = msgspec.structs.replace(state.costs), state.workspace
    entries = Decoded(lines_with_any(data, *_NEEDLES), decode)
    for entry in entries:
        if entry.timestamp is None:
            entry.timestamp = _newest_time(data[: data.find(entries.line)]) or state.timestamp
        call, folder = entry.call, entry.cwd or folder
        if entry.type == "cost-state":
            made = costs.apply(entry, entry.timestamp, path)
            if made is not None and (at := when(entry.timestamp)) is not None:
                summaries.append(_summary(entry.session_id or state.session, folder, at, *made))
        elif entry.subtype == "compact_boundary":
            costs.compacted = costs.compacted or not entry.is_sidechain
        if call is None:
            continue
        name = call[0].id or entry.request_id or entry.uuid or str(entry.timestamp)
        output = call[1].output_tokens or 0
        known = replies.get(name)
        if known is None or known[0] <= output:
            replies[name] = output, entry
        costs.add_message(name, parts_of(usage_of(call[1])))
    calls = [call for name, (_, entry) in replies.items() for call in _calls(name, entry, state)]
    newest = _newest_time(data) or state.timestamp
    after = _State(state.session, folder, newest, costs)
    return Folded(after, [*calls, *summaries], entries.skipped)


def _newest_time(data: bytes) -> str | None:
    """The time of the newest line that has one."""
    end = len(data)
    while (stop := data.rfind(b"\n", 0, end)) >= 0:
        end = stop
        line = data[data.rfind(b"\n", 0, stop) + 1 : stop]
        for entry in Decoded((line,), decode):
            if entry.timestamp:
                return entry.timestamp
    return None


def _summary(session: str, folder: str, at: datetime, model: str, usage: Usage) -> Call:
    """The call, or calls, that made the summary of a compaction."""
    return Call(
        at=at,
        agent=AGENT,
        session=session,
        model=model,
        provider=provider_of(model) or "anthropic",
        usage=usage,
        request=f"summary/{at.isoformat()}/{usage.prompt_tokens}/{usage.output_tokens}",
        workspace=folder,
        category="summary",
    )


def _calls(request: str, entry: TranscriptLine, state: _State) -> Iterator[Call]:
    """The calls behind a line: one, but for a message that other models had a part in."""
    at = when(entry.timestamp)
    if entry.call is None or at is None:
        return
    message, usage = entry.call
    model = message.model or "unknown"
    parts = usage.iterations or ()
    own = [part for part in parts if part.model in (None, message.model)]
    numbers = sum_of(own) if len(own) > 1 else usage_of(usage)
    call = Call(
        at=at,
        agent=AGENT,
        session=entry.session_id or state.session,
        model=model,
        provider=provider_of(model) or "anthropic",
        usage=numbers,
        request=request,
        workspace=entry.cwd or "",
        category="subagent" if entry.is_sidechain else "main",
        tier=tier_of(usage),
        cache_write_5m_tokens=five_minutes(numbers, usage),
        web_searches=usage.searches,
        quality="exact" if message.stop_reason else "lower bound",
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


def _projects(places: Places) -> Iterator[Path]:
    """The folders that hold a folder for each project."""
    for folder in homes(places, AGENT):
        yield folder if folder.name == "projects" else folder / "projects"


def _of_project(folder: str) -> Iterator[Found]:
    for entry in entries(folder):
        if entry.name.endswith(".jsonl"):
            yield from listed(AGENT, entry, live=_is_main(entry.name))
        elif entry.is_dir():
            agents = os.path.join(entry.path, "subagents")
            for found in below(AGENT, agents, ".jsonl", live=False):
                if os.path.basename(found.path).startswith("agent-"):
                    yield found


def _newest(folder: str) -> list[Found]:
    """The newest session of a folder that bears another name than the roots give it.

    Folders can be renamed, and their lines say where the agent works. Sub-agents' folders, which
    most sessions have, are not listed for that.
    """
    names = (one for one in entries(folder) if _is_main(one.name))
    stores = (found for entry in names for found in listed(AGENT, entry))
    return sorted(stores, key=lambda found: found.mtime_ns)[-1:]


def _is_main(name: str) -> bool:
    return name.endswith(".jsonl") and not name.startswith("agent-")


def _slug(path: str) -> str:
    """What the folder of a project that lies at `path`, or below it, begins with.

    Several paths can give the same; their lines distinguish them.
    """
    name = re.sub(r"[^a-zA-Z0-9]", "-", unicodedata.normalize("NFC", path))
    return name[:_LONGEST_SLUG]


def _given(places: Places) -> tuple[str, ...]:
    """The name that a user gives to the folder of all projects alike."""
    name = places.variable("CLAUDE_CODE_PROJECT_DIR_NAME")
    return (name,) if name else ()


def _below(folder: Path, path: str) -> tuple[str, ...]:
    """The parts of `path` below a folder; none where it is elsewhere."""
    with suppress(ValueError):
        return Path(path).relative_to(folder).parts
    return ()


def _first_entry(path: str) -> TranscriptLine:
    """The folder and kind that a session was begun with, and its summary if it has one."""
    cwd = summary = kind = None
    for entry in Decoded(first_lines(path, _HEAD), decode):
        cwd, summary = cwd or entry.cwd, summary or entry.summary
        kind = kind or entry.session_kind
        if cwd:
            break
    return TranscriptLine(cwd=cwd, summary=summary, session_kind=kind)
