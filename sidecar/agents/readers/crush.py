"""Reads Crush's `.crush/crush.db` in each project.

The token columns of a session describe only its latest call, while the cost covers all calls.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from sidecar import typed
from sidecar.agents.context_sizes import ContentBlock, ContextSizes, PartKind
from sidecar.agents.databases import (
    DatabaseState,
    OneDatabase,
    column_text,
    read_only,
    rows,
)
from sidecar.agents.file_reading import (
    Record,
    cached_until_changed,
    decode_file,
    parse_time,
    reported_usage,
    token_count,
)
from sidecar.agents.folders import Places, agent_folders
from sidecar.agents.session_events import CallFinished, CallSize
from sidecar.agents.stores import ContextTrack, SessionState


class _Project(Record):
    path: str | None = None
    data_dir: str | None = None


class _Projects(Record):
    projects: list[_Project] | None = None


@cached_until_changed
def _databases_in_list(path: str) -> tuple[Path, ...]:
    """Return the databases of all projects in `projects.json`."""
    projects = decode_file(path, _Projects).projects or ()
    folders = (os.path.join(one.path, one.data_dir or ".crush") for one in projects if one.path)
    return tuple(Path(folder) / "crush.db" for folder in folders)


def _newest_model(connection: sqlite3.Connection, session: str) -> tuple[str | None, str | None]:
    newest = "session_id = ? AND model != '' ORDER BY created_at DESC LIMIT 1"
    row = next(rows(connection, "messages", newest, session), {})
    return column_text(row.get("model")), column_text(row.get("provider"))


def _folder_of_database(path: str) -> str:
    folder = os.path.dirname(path)
    return os.path.dirname(folder) if os.path.basename(folder) == ".crush" else folder


class Crush(OneDatabase):
    table, title_column = "sessions", "title"

    def paths(self, places: Places) -> tuple[Path, ...]:
        """Return the databases of all projects in Crush's project lists."""
        found: list[Path] = []
        for home in agent_folders(places, self.agent):
            found += _databases_in_list(home / "projects.json") or ()
        return tuple(dict.fromkeys(found))

    def changes(
        self, path: str, connection: sqlite3.Connection, state: DatabaseState
    ) -> Iterator[CallFinished]:
        folder, since = _folder_of_database(path), state.at
        for row in rows(connection, self.table, "? IS NULL OR updated_at >= ?", since, since):
            state.advance(row["updated_at"])
            name, parent = column_text(row.get("id")), column_text(row.get("parent_session_id"))
            if name is None:
                continue
            model, provider = _newest_model(connection, name)
            session, cost = _make_session(name, folder, row, model), row.get("cost")
            session.subagent_of, state.sessions[name] = parent, session
            if isinstance(cost, int | float) and cost > 0:
                yield from session.call(
                    session.began_at or session.updated_at,
                    reported_usage(0, 0),
                    name,
                    model,
                    provider,
                    session=parent or name,
                    category="subagent" if parent else "main",
                    reported_cost=Decimal(repr(cost)),
                )

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:
        """Add the parts since the last summary, and estimate the size of the system prompt.

        The size must be estimated, because Crush stores only the size of the newest prompt.
        """
        with read_only(path) as connection:
            row = next(rows(connection, self.table, "id = ?", session), None) or {}
            order = "session_id = ? ORDER BY created_at, rowid"
            messages = [*rows(connection, "messages", order, session)]
        summary, prompt = row.get("summary_message_id"), token_count(row.get("prompt_tokens"))
        start = next((n for n, one in enumerate(messages) if summary and one["id"] == summary), 0)
        sizes.tokens = counted = 0
        for message in messages[start:]:
            kind: PartKind = "assistant" if message.get("role") == "assistant" else "user"
            is_summary = bool(summary) and message["id"] == summary
            for part in _parts(str(message.get("parts") or "[]").encode()):
                part.add_to(sizes, "summary" if is_summary else kind)
            counted = sizes.tokens if kind == "assistant" else counted
        if prompt:
            tokens = prompt + token_count(row.get("completion_tokens"))
            sizes.set_system_prompt(tokens - counted)


READER = Crush()


class _PartData(ContentBlock):
    command: msgspec.Raw = msgspec.Raw(b"")
    output: msgspec.Raw = msgspec.Raw(b"")


class _Part(Record):
    type: str | None = None
    data: _PartData = msgspec.field(default_factory=_PartData)

    def add_to(self, sizes: ContextSizes, kind: PartKind) -> None:
        data = self.data
        if self.type == "tool_call":
            sizes.add("call", data.input, data.name or "")
        elif self.type == "tool_result":
            sizes.add("result", data.content, data.name or "")
        elif self.type in ("binary", "image_url"):
            sizes.add_attachment()
        else:
            for text in (data.text, data.thinking, data.command, data.output):
                sizes.add(kind, text)


_parts = typed.decoder(list[_Part])


def _make_session(name: str, folder: str, row: dict[str, Any], model: str | None) -> SessionState:
    size = reported_usage(row.get("prompt_tokens"), row.get("completion_tokens"))
    track = ContextTrack().call(CallSize.of(size, model))
    if not size.prompt_tokens and row.get("summary_message_id"):
        track = track.compaction()
    session = SessionState(name, updated_at=parse_time(row["updated_at"]), model=model, track=track)
    session.began_at = parse_time(row.get("created_at"))
    session.work_in(folder)
    session.title_at = name if row.get("title") else None
    return session
