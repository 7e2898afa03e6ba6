"""Copilot CLI: `session-store.db`, a row a call; `session-state/<session>/events.jsonl` beside it.

The events have the output alone. What a session says of itself as it shuts down covers an unknown
part of it, and is not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.agents.databases import LastRow, columns, fold_database, read_only
from sidecar.agents.fields import CamelRecord, TokenCount, credits_usd, when
from sidecar.agents.folding import Folded, fold_lines
from sidecar.agents.homes import homes
from sidecar.agents.line_files import Decoded
from sidecar.agents.listing import database, entries, files_of, stat_of
from sidecar.agents.occupancy import NO_USAGE, Track, occupancy
from sidecar.agents.readers.copilot_cli_events import Data, NewestEvents, event
from sidecar.agents.tail import first_lines, lines_with, open_quietly
from sidecar.agents.values import (
    Batch,
    Call,
    Category,
    Found,
    Glance,
    Mark,
    Reading,
    StoredSession,
    stored,
)
from sidecar.messages.usage import Usage, disjoint, included

if TYPE_CHECKING:
    import sqlite3

    from sidecar.agents.places import Places
    from sidecar.agents.reader import Look
    from sidecar.agents.roots import Roots

AGENT = "copilot-cli"
PROVIDER = "github-copilot"
_STORE, _STATE, _EVENTS = "session-store.db", "session-state", "events.jsonl"
_TABLE = "assistant_usage_events"
_WANTED = (
    "model", "copilot_usage_model", "input_tokens", "output_tokens", "cache_read_tokens",
    "cache_write_tokens", "reasoning_tokens", "token_details_json", "created_at",
    "total_nano_aiu", "initiator", "agent_id", "parent_tool_call_id",
)  # fmt: skip
_NANO = 10**9
_HEAD = 256 << 10
_CWD = re.compile(r"^cwd:\s*(.+?)\s*$", re.MULTILINE)


class _Detail(CamelRecord):
    token_type: str | None = None
    token_count: TokenCount = None


class _Log(msgspec.Struct, frozen=True):
    """Of a session's events."""

    session: str
    workspace: str
    until: str | None = None
    """ISO 8601: calls from here on are rows of the database."""


_details = typed.decoder(list[_Detail])


class _Row:
    """A call, of whatever columns there are."""

    def __init__(self, values: tuple[object, ...], names: tuple[str, ...]) -> None:
        found = dict(zip(names, values, strict=True))
        self.id = int(str(found["id"]))
        self.session = str(found["session_id"] or "")
        self.model = str(found.get("copilot_usage_model") or found.get("model") or "unknown")
        self.at = when(str(found.get("created_at") or ""))
        self.nano = found.get("total_nano_aiu")
        self._found = found

    @property
    def category(self) -> Category:
        """A compaction has no message of an assistant; a sub-agent has a window of its own."""
        if self._found.get("initiator") == "compaction":
            return "summary"
        initiator = str(self._found.get("initiator") or "")
        child = self._found.get("agent_id") or self._found.get("parent_tool_call_id")
        return "subagent" if child or initiator.startswith("sub") else "main"

    @property
    def usage(self) -> Usage:
        """The input holds what the cache read and wrote, the output the reasoning."""
        numbers = (self._found.get(f"{name}_tokens") for name in _NUMBERS)
        prompt, read, write, output, reasoning = (max(0, int(str(one or 0))) for one in numbers)
        return included(prompt, read, write or self._written, 0, output, reasoning)

    @property
    def _written(self) -> int:
        """By the bill, where the column has a wrong 0."""
        text = self._found.get("token_details_json")
        try:
            details = _details(text) if isinstance(text, str | bytes) else []
        except msgspec.DecodeError:
            return 0
        written = (one for one in details if _is_write(one.token_type or ""))
        return sum(one.token_count or 0 for one in written)


_NUMBERS = ("input", "cache_read", "cache_write", "output", "reasoning")


def _is_write(kind: str) -> bool:
    kind = kind.lower()
    return "cache" in kind and ("write" in kind or "creat" in kind)


class CopilotCli:
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT

    def folders(self, places: Places) -> tuple[str, ...]:
        homes = self._homes(places)
        stores = (path for home in homes for path in files_of(os.path.join(home, _STORE)))
        return (*stores, *(os.path.join(home, _STATE) for home in homes))

    def _homes(self, places: Places) -> tuple[str, ...]:
        return tuple(map(str, homes(places, AGENT)))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:  # noqa: ARG002
        for home in self._homes(places):
            store = database(AGENT, os.path.join(home, _STORE))
            if store is not None:
                yield store
            for session in entries(os.path.join(home, _STATE)):
                events = stat_of(AGENT, os.path.join(session.path, _EVENTS))
                if events is not None:
                    yield events

    def store_at(self, places: Places, path: str) -> Found | None:
        path = path.removesuffix("-wal").removesuffix("-shm")
        if not any(path.startswith(folder + os.sep) for folder in self._homes(places)):
            return None
        if os.path.basename(path) == _STORE:
            return database(AGENT, path)
        return stat_of(AGENT, path) if os.path.basename(path) == _EVENTS else None

    def glance(self, look: Look) -> Glance:
        found, roots = look.found, look.roots
        if os.path.basename(found.path) == _EVENTS:
            return _glance_events(found, roots)
        with read_only(found.path) as connection:
            return Glance(found, tuple(_sessions(found, connection, roots)))

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        if os.path.basename(found.path) == _STORE:
            return fold_database(found, mark, LastRow(), _fold_rows)
        folder = Path(found.path).parent
        until = _rows_since(str(folder.parents[1] / _STORE), folder.name)
        state = _Log(folder.name, _cwd_in(str(folder)) or "")
        return fold_lines(found, mark, state, partial(_fold_events, until))


READER = CopilotCli()


def _fold_rows(connection: sqlite3.Connection, state: LastRow) -> Folded[LastRow]:
    newest = _newest_row(connection)
    folders = _folders(connection)
    calls = []
    for row in _rows(connection, "id > ?", (0 if newest < state.row else state.row,)):
        if row.at is None:
            continue
        calls.append(
            Call(
                at=row.at,
                agent=AGENT,
                session=row.session,
                model=row.model,
                provider=PROVIDER,
                usage=row.usage,
                request=f"{row.session}/{row.id}",
                workspace=folders.get(row.session) or "",
                category=row.category,
                cost_usd=credits_usd(float(str(row.nano)) / _NANO) if row.nano else None,
            )
        )
    return Folded(LastRow(newest), calls)


def _sessions(
    found: Found, connection: sqlite3.Connection, roots: Roots
) -> Iterator[StoredSession]:
    """The sessions of the roots, each by its newest call."""
    folders = _folders(connection)
    home = os.path.dirname(found.path)
    for name, folder in folders.items():
        cwd = folder or _cwd_in(os.path.join(home, _STATE, name))
        if cwd is None or not roots.hold(cwd):
            continue
        track, newest = Track(), None
        for row in _rows(connection, "session_id = ?", (name,), "DESC"):
            newest = newest or row
            if row.category == "summary":
                track = track.compaction()
                break
            if row.category == "main":
                track = track.call(Reading.of(row.usage, row.model))
                if track.newest:
                    break
        if newest is not None:
            model = track.newest.model if track.newest else newest.model
            yield stored(found, name, cwd, newest.at, occupancy(track), model=model, rank=1)


def _rows(
    connection: sqlite3.Connection, where: str, values: tuple[object, ...], order: str = "ASC"
) -> Iterator[_Row]:
    known = columns(connection, _TABLE)
    if not {"id", "session_id"} <= known:
        return
    names = ("id", "session_id", *(name for name in _WANTED if name in known))
    query = f"SELECT {', '.join(names)} FROM {_TABLE} WHERE {where} ORDER BY id {order}"  # noqa: S608
    for values_ in connection.execute(query, values):
        yield _Row(values_, names)


def _newest_row(connection: sqlite3.Connection) -> int:
    if "id" not in columns(connection, _TABLE):
        return 0
    return int(connection.execute(f"SELECT max(id) FROM {_TABLE}").fetchone()[0] or 0)  # noqa: S608


def _folders(connection: sqlite3.Connection) -> dict[str, str | None]:
    """The folders of all sessions."""
    if not {"id", "cwd"} <= columns(connection, "sessions"):
        return {}
    return dict(connection.execute("SELECT id, cwd FROM sessions").fetchall())


def _rows_since(path: str, session: str) -> str | None:
    """From when on the database has a session's calls, in ISO 8601; None for never."""
    if not os.path.exists(path):
        return None
    with read_only(path) as connection:
        first = next(_rows(connection, "session_id = ?", (session,)), None)
    return first.at.isoformat() if first and first.at else None


def _fold_events(until: str | None, state: _Log, data: bytes) -> Folded[_Log]:
    """What the events hold of calls from before the database had them."""
    until = state.until or until
    begins = when(until)
    calls: list[Call] = []
    events = Decoded(lines_with(data, b'"outputTokens"'), event)
    for one in events:
        at, data_ = when(one.timestamp), one.data or Data()
        if one.type != "assistant.message" or at is None or not data_.output_tokens:
            continue
        if begins is None or at < begins:
            calls.append(
                Call(
                    at=at,
                    agent=AGENT,
                    session=state.session,
                    model=data_.model or "unknown",
                    provider=PROVIDER,
                    usage=disjoint(0, 0, 0, 0, data_.output_tokens, 0),
                    request=data_.message_id or one.id or f"{state.session}/{one.timestamp}",
                    workspace=state.workspace,
                    category="subagent" if data_.parent_tool_call_id else "main",
                    quality="lower bound",
                )
            )
    return Folded(msgspec.structs.replace(state, until=until), calls, events.skipped)


def _glance_events(found: Found, roots: Roots) -> Glance:
    """What the events know beside the database: window, whether a turn is under way."""
    folder = os.path.dirname(found.path)
    cwd = _cwd_in(folder)
    if cwd is None or not roots.hold(cwd):
        return Glance(found)
    newest = NewestEvents()
    newest.look(found.path, event)
    for line in first_lines(found.path, _HEAD):
        newest.begin(line)
        if newest.model:
            break
    track = Track().compaction() if newest.compacted else Track(why=NO_USAGE)
    size = occupancy(track, "lower bound", window=newest.window)
    session = stored(
        found,
        os.path.basename(folder),
        cwd,
        newest.at,
        size,
        model=newest.model,
        active=newest.active,
    )
    return Glance(found, (session,), newest.skipped)


def _cwd_in(folder: str) -> str | None:
    """The folder that a session works in, by its `workspace.yaml`."""
    try:
        with open_quietly(os.path.join(folder, "workspace.yaml")) as file:
            found = _CWD.search(file.read(_HEAD).decode("utf-8", "replace"))
    except OSError:
        return None
    return found.group(1).strip("'\"") if found else None
