"""Reads the databases of opencode and its forks, and opencode's files before version 1.2.

A database's name starts with the program's, such as `opencode*.db` or `kilo*.db`. The files are in
`storage/`. Before version 7, Kilo Code was a fork of Cline.

Forks copy messages with new ids, and the migration to version 2 keeps the old tables. A call is
therefore identified by fields that are the same in all copies: time, model and token counts.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec.structs import replace

from sidecar import typed
from sidecar.agents.context_sizes import ContextSizes
from sidecar.agents.databases import OneDatabase, columns, read_database, read_only
from sidecar.agents.file_reading import (
    CamelRecord,
    Number,
    Record,
    TokenCount,
    cached_until_changed,
    decode_document,
    decode_file,
    open_quietly,
    parse_usd,
    reported_usage,
    time_from_ms,
    token_count,
    try_decode_file,
    without_comments,
)
from sidecar.agents.folders import Places, agent_folders, database_by_variable
from sidecar.agents.readers.cline import TASK_FILE, Tasks
from sidecar.agents.session_events import (
    CallFinished,
    CallSize,
    McpToolCall,
    Store,
    StoredSession,
    StoreRead,
)
from sidecar.agents.stores import (
    DocumentReader,
    SessionState,
    TwoStores,
    list_folder,
    store_from_path,
)
from sidecar.cost.cache_losses import CacheLoss
from sidecar.known_agents import all_agents
from sidecar.messages.vendor_usage import Usage
from sidecar.models.catalogue import prompt_limit_of
from sidecar.models.names import parse
from sidecar.models.window import max_output_of


class _Cache(Record):
    read: Number = None
    write: Number = None


class _Tokens(Record):
    input: Number = None
    output: Number = None
    reasoning: Number = None
    """The number of reasoning tokens, which are not included in `output`."""
    cache: _Cache | None = None

    @property
    def usage(self) -> Usage:
        cache, reasoning = self.cache or _Cache(), token_count(self.reasoning)
        output = token_count(self.output) + reasoning
        counts = self.input, output, cache.read, cache.write, reasoning
        return reported_usage(*counts, includes_cached=False)


class _Time(Record):
    created: Number = None
    completed: Number = None


class _Model(Record):
    id: str | None = None
    provider_id: str | None = msgspec.field(default=None, name="providerID")


_FAST = "-fast"
_FAST_TIERS = {"openai": "priority", "anthropic": "fast"}
"""Service tiers keyed by the providers whose models opencode offers again, as `MODEL-fast`."""


class MessagePath(Record):
    cwd: str | None = None


class OpenCodeMessage(Record):
    """The `data` column of a message. The message is a summary only if `summary` is `true`."""

    role: str | None = None
    session_id: str | None = msgspec.field(default=None, name="sessionID")
    model_id: str | None = msgspec.field(default=None, name="modelID")
    provider_id: str | None = msgspec.field(default=None, name="providerID")
    model: _Model | str | None = None
    tokens: _Tokens | None = None
    time: _Time | None = None
    path: MessagePath | None = None
    cost: Number = None
    """The cost in USD from opencode's price list. Zero means that the model has no known price."""
    finish: str | None = None
    variant: str | None = None
    """The effort."""
    error: msgspec.Raw = msgspec.Raw(b"null")
    summary: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def ends_turn(self) -> bool:
        """Whether the agent is idle after this message."""
        if self.role != "assistant" or bytes(self.error) != b"null":
            return self.role == "assistant"
        return bool(self.time and self.time.completed) and self.finish != "tool-calls"

    @property
    def created(self) -> float:
        return (self.time and self.time.created) or 0.0

    @property
    def is_summary(self) -> bool:
        return bytes(self.summary) == b"true"

    @property
    def named(self) -> tuple[str, str, str]:
        """The model, the provider and the service tier."""
        model = self.model if isinstance(self.model, _Model) else _Model()
        provider = self.provider_id or model.provider_id or ""
        name, tier = self.model_id or model.id or "unknown", _FAST_TIERS.get(provider, "")
        if tier and name.endswith(_FAST):
            return name.removesuffix(_FAST), provider, tier
        return name, provider, ""

    def calls(self, session: str, folder: str | None, *, is_child: bool) -> list[CallFinished]:
        """Return the message's call, or an empty list if the message is incomplete."""
        time = self.time or _Time()
        if self.tokens is None or not time.completed:
            return []
        usage = self.tokens.usage
        model, provider, tier = self.named
        written = f"{model}{_FAST}" if tier else model
        kept = f"{int(time.created or 0)} {written} {msgspec.structs.astuple(usage)}"
        return SessionState(session, folder=folder).call(
            time_from_ms(time.created),
            usage,
            blake2b(kept.encode(), digest_size=12).hexdigest(),
            model,
            provider,
            category="subagent" if is_child else "summary" if self.is_summary else "main",
            agent_cost=parse_usd(self.cost),
            tier=tier,
        )


_decode_model = typed.decoder(_Model)
decode = typed.decoder(OpenCodeMessage)
"""Decode a message.

Raises:
    msgspec.DecodeError: The message is malformed.
"""


class _ToolState(Record):
    status: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"")
    output: msgspec.Raw = msgspec.Raw(b"")


class _Part(Record):
    type: str | None = None
    tool: str | None = None
    text: msgspec.Raw = msgspec.Raw(b"")
    state: _ToolState | None = None

    def add_to(self, sizes: ContextSizes, role: str | None) -> None:
        if self.type == "compaction":
            sizes.compact()
        elif self.type == "tool" and self.state is not None:
            sizes.add("call", self.state.input, self.tool or "")
            sizes.add("result", self.state.output, self.tool or "")
        elif self.type == "file":
            sizes.add_attachment()
        elif self.type in ("text", "reasoning"):
            sizes.add("assistant" if role == "assistant" else "user", self.text)


_decode_part = typed.decoder(_Part)
_RUNNING = "running"


_OLD_FOLDERS = {"kilo": (".kilocode",)}
"""Earlier names of a program's settings folders."""
_LEGACY_NAMES = ("opencode.jsonc", "opencode.json", "config.json")
_LARGEST = 1 << 20


class _Limit(Record):
    context: TokenCount = None


class _ConfiguredModel(Record):
    limit: _Limit | None = None


class _Provider(Record):
    models: dict[str, _ConfiguredModel] | None = None


class _Settings(Record):
    provider: dict[str, _Provider] | None = None


def _program(agent: str) -> str:
    """Return the program's name, which is the one of its folders and the prefix of its files."""
    return all_agents()[agent].folders[0].rpartition("/")[2]


def own_window(places: Places, agent: str, folder: str, model: str) -> int | None:
    """Return a model's context window according to the project's or the user's settings.

    Returns None if it is not set. If several providers offer the model, the smallest window is
    returned.

    Args:
        places: The agents' file locations.
        agent: `opencode`, or a fork of it.
        folder: The session's folder, or an empty string if it is unknown.
        model: The model's name.
    """
    for path in _settings_files(places, _program(agent), folder):
        settings = _read_settings(path) or _Settings()
        models = ((one.models or {}).get(model) for one in (settings.provider or {}).values())
        windows = [one.limit.context for one in models if one and one.limit and one.limit.context]
        if windows:
            return min(windows)
    return None


def _settings_files(places: Places, program: str, folder: str) -> Iterator[str]:
    """Yield the paths of settings files. Settings in earlier files override those in later ones."""
    names = dict.fromkeys((f"{program}.jsonc", f"{program}.json", *_LEGACY_NAMES))

    def files_in(place: str | Path) -> Iterator[str]:
        return (os.path.join(place, name) for name in names)

    if named := places.variable(f"{program.upper()}_CONFIG_DIR"):
        yield from files_in(named)
    project = _project_folders(folder) if folder else []
    for parent in (*project, str(places.home)):
        for inner in (f".{program}", *_OLD_FOLDERS.get(program, ())):
            yield from files_in(os.path.join(parent, inner))
    for parent in project:
        yield from files_in(parent)
    if named := places.variable(f"{program.upper()}_CONFIG"):
        yield named
    yield from files_in(places.xdg_config / program)


def _project_folders(folder: str) -> list[str]:
    """Return a folder and its parents, up to the root of the git worktree."""
    parents = [folder, *map(str, Path(folder).parents)]
    roots = (number for number, one in enumerate(parents) if Path(one, ".git").exists())
    return parents[: next(roots, 0) + 1]


@cached_until_changed
def _read_settings(path: str) -> _Settings:
    """Return settings in JSON with comments. Raises OSError."""
    with open_quietly(path) as file:
        text = file.read(_LARGEST).decode("utf-8", "replace")
    try:
        return typed.decode_leniently(without_comments(text), _Settings)
    except msgspec.DecodeError:
        return _Settings()


_NEWEST = 50
_LONGEST_REPLY = 32_000
"""The maximum size, in tokens, of the reply that opencode requests from a model."""
_RESERVED = 20_000
"""The maximum number of tokens that opencode reserves if a model has a prompt limit."""
_COMPACTIONS = ("compaction", "summary")
_PLACEHOLDER = re.compile(r"(New|Child) session - \d{4}-\d\d-\d\dT[\d:.]+Z")
"""The title of a session until the agent has made one. A fork's title has a suffix."""


class _Row(msgspec.Struct, frozen=True, array_like=True):
    id: str
    folder: str | None = None
    parent: str | None = None
    title: str | None = None
    updated: Number = None
    forked: str | None = None
    boundary: int | str | None = None
    created: Number = None
    input: Number = None
    output: Number = None
    reasoning: Number = None
    cache_read: Number = None
    cache_write: Number = None
    cost: Number = None
    model: str | None = None

    def total(self, session: SessionState) -> list[CallFinished]:
        """Return the session's total as one call, or an empty list if the row has no total.

        With some providers, opencode counts tokens only in the session's row.
        """
        tokens = _Tokens(
            self.input, self.output, self.reasoning, _Cache(self.cache_read, self.cache_write)
        )
        named = _Model()
        with suppress(msgspec.DecodeError):
            named = _decode_model((self.model or "{}").encode())
        model, provider, tier = OpenCodeMessage(model=named).named
        return session.call(
            session.began_at,
            tokens.usage,
            f"{self.id} total",
            session.model or model,
            provider,
            session=self.parent or self.id,
            category="subagent" if self.parent else "main",
            agent_cost=parse_usd(self.cost),
            tier=tier,
        )


class _State(msgspec.Struct):
    message: int = 0
    """When the `message` table last changed, in milliseconds since 1970."""
    session_message: int = 0
    """When the `session_message` table, which replaces `message`, last changed."""
    sessions: dict[str, Number] = {}
    """The time of the latest change to each session."""


class _SessionTime(Record):
    updated: Number = None


class _SessionFile(CamelRecord):
    id: str | None = None
    directory: str | None = None
    title: str | None = None
    parent_id: str | None = msgspec.field(default=None, name="parentID")
    time: _SessionTime | None = None


class _Databases(OneDatabase):
    """Reads the databases of opencode and its forks."""

    def paths(self, places: Places) -> tuple[Path, ...]:
        # Watch the default database even if it does not exist yet, so the first session is noticed.
        homes = agent_folders(places, self.agent)
        paths = [home / f"{_program(self.agent)}.db" for home in homes]
        entries = (entry for home in homes for entry in list_folder(home))
        paths += [Path(one.path) for one in entries if self._is_database(one.name)]
        own = database_by_variable(places, self.agent)
        return tuple(dict.fromkeys([*paths, own] if own else paths))

    def _is_database(self, name: str) -> bool:
        return name.startswith(_program(self.agent)) and name.endswith(".db")

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        return read_database(store, state, _State, self._events_of_rows)

    def title(self, store: Store, title_at: str) -> str | None:
        return _read_titles(store).get(title_at)

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:
        with read_only(path) as connection:
            _measure(connection, session, sizes)

    def window(self, places: Places, session: StoredSession) -> int | None:
        return own_window(places, self.agent, session.folder or "", session.model or "")

    def made_call(self, path: str, session: str, call: McpToolCall) -> bool:
        """Return whether the session's newest message has a running call of the tool.

        Messages before it may contain calls that were interrupted, which stay `running`.
        """
        with read_only(path) as connection:
            return any(
                part.state is not None
                and part.state.status == _RUNNING
                and (part.tool or "").endswith(call.tool)
                for part in _newest_parts(connection, session)
            )

    def _events_of_rows(self, connection: sqlite3.Connection, state: _State) -> StoreRead:
        """Return the completed calls in all changed messages, and the changed sessions.

        opencode updates rows in place.
        """
        rows, changed = _read_sessions(connection), set[str]()
        calls: list[CallFinished] = []
        replies: dict[str, list[OpenCodeMessage]] = {}
        skipped = 0
        for table in ("message", "session_message"):
            for name, updated, seq, data in _changed_messages(
                connection, table, getattr(state, table)
            ):
                setattr(state, table, max(getattr(state, table), updated))
                changed.add(name)
                row = rows.get(name)
                if data is None or (row is not None and _is_copied(row, seq)):
                    continue
                try:
                    message = decode(data)
                except msgspec.DecodeError:
                    skipped += 1
                    continue
                parent, folder = (row.parent, row.folder) if row else (None, None)
                folder = folder if row or not message.path else message.path.cwd
                calls += message.calls(parent or name, folder, is_child=parent is not None)
                if parent is None:
                    replies.setdefault(name, []).append(message)
        known = state.sessions
        state.sessions = {row.id: row.updated for row in rows.values()}
        is_whole = not known or not known.keys() <= state.sessions.keys()
        changed |= {name for name, at in state.sessions.items() if known.get(name) != at}
        wanted = state.sessions.keys() if is_whole else changed & state.sessions.keys()
        measured = [_session_with_size(connection, rows[name]) for name in wanted]
        for session in measured:
            session.subagent_of = rows[session.id].parent
            if _has_only_uncounted_replies(connection, session.id):
                calls += rows[session.id].total(session)
        losses = {
            request: loss
            for name, messages in replies.items()
            for request, loss in _judge_replies(connection, name, messages).items()
        }
        calls = [replace(call, loss=losses.get(call.request_id)) for call in calls]
        sessions = [session.snapshot() for session in measured]
        return StoreRead(calls, sessions, skipped, is_whole)

    def compacts_at(self, window: int, model: str) -> int:
        reply = min(max_output_of(parse(model).bare) or _LONGEST_REPLY, _LONGEST_REPLY)
        limit = prompt_limit_of(model) or window
        return min(window - reply, limit - min(reply, _RESERVED))


class _Files(DocumentReader):
    """Reads opencode's files before version 1.2."""

    inner = ("storage/session", "storage/message")
    pattern = r".*\.json"

    def make_store(self, path: str) -> Store | None:
        is_session = os.path.join("storage", "session", "") in path
        return store_from_path(self.agent, path, live=is_session)

    def parse(self, store: Store, data: bytes) -> StoreRead:
        if store.live:
            return _events_of_session(store, data)
        message = decode_document(data, OpenCodeMessage)
        if message.role != "assistant":
            return StoreRead()
        folder = message.path.cwd if message.path else None
        return StoreRead(message.calls(message.session_id or "", folder, is_child=False))

    def title(self, store: Store, title_at: str) -> str | None:  # noqa: ARG002
        return _own_title(decode_file(store.path, _SessionFile).title)

    def window(self, places: Places, session: StoredSession) -> int | None:
        return own_window(places, self.agent, session.folder or "", session.model or "")


READER = TwoStores(
    TwoStores(_Databases(), _Files(), lambda path: path.endswith(".json")),
    Tasks(),  # Kilo Code's tasks: opencode itself has no extension
    lambda path: path.endswith(TASK_FILE),
)


def _read_sessions(connection: sqlite3.Connection) -> dict[str, _Row]:
    found: dict[str, _Row] = {}
    wanted = (
        "parent_id", "title", "time_updated", "fork_session_id", "fork_boundary",
        "time_created", "tokens_input", "tokens_output", "tokens_reasoning", "tokens_cache_read",
        "tokens_cache_write", "cost", "model",
    )  # fmt: skip
    for table in ("session", "session_v2"):
        known = columns(connection, table)
        if not {"id", "directory"} <= known:
            continue
        names = ", ".join(name if name in known else "NULL" for name in wanted)
        rows = connection.execute(f"SELECT id, directory, {names} FROM {table}")  # noqa: S608
        for values in rows:
            with suppress(msgspec.ValidationError):  # SQLite does not enforce column types
                row = typed.convert(values, _Row)
                found[row.id] = row
    return found


@lru_cache(maxsize=8)
def _read_titles(store: Store) -> dict[str, str]:
    with read_only(store.path) as connection:
        rows = _read_sessions(connection)
    return {row.id: title for row in rows.values() if (title := _own_title(row.title))}


def _own_title(title: str | None) -> str | None:
    return title if title and not _PLACEHOLDER.match(title) else None


def _is_copied(row: _Row, seq: int | None) -> bool:
    """Return whether a message was copied from the session's parent."""
    boundary = row.boundary if row.forked else None
    return isinstance(boundary, int) and seq is not None and seq <= boundary


def _changed_messages(
    connection: sqlite3.Connection, table: str, since: int
) -> Iterator[tuple[str, int, int | None, bytes | None]]:
    """Yield the messages that changed at or after `since`, in milliseconds since 1970.

    Each item contains the session id, the time of the change, the sequence number, and the data
    of a reply. Messages in the old table are skipped if their session is also in the new table.
    """
    known = columns(connection, table)
    if not {"session_id", "time_updated", "data"} <= known:
        return
    seq, is_reply = ("seq", "type = 'assistant'") if "seq" in known else ("NULL", "1")
    is_new = table == "message" and columns(connection, "session_v2")
    mine = "session_id NOT IN (SELECT id FROM session_v2)" if is_new else "1"
    yield from connection.execute(
        f"SELECT session_id, time_updated, {seq}, CASE WHEN {is_reply} THEN CAST(data AS BLOB) END"  # noqa: S608
        f" FROM {table} WHERE time_updated >= ? AND typeof(time_updated) = 'integer' AND {mine}"
        " ORDER BY time_updated",
        (since,),
    )


def _has_only_uncounted_replies(connection: sqlite3.Connection, session: str) -> bool:
    """Return whether a session has finished replies, all of them without tokens."""
    replies = 0
    for kind, _, data in _newest_messages(connection, session):
        with suppress(msgspec.DecodeError):
            message = decode(data)
            if (message.role or kind) == "assistant":
                usage = (message.tokens or _Tokens()).usage
                is_finished = message.time is not None and message.time.completed
                if usage.prompt_tokens or usage.output_tokens or not is_finished:
                    return False
                replies += 1
    return replies > 0


def _make_session(row: _Row, rank: int) -> SessionState:
    session = SessionState(
        row.id,
        began_at=time_from_ms(row.created),
        updated_at=time_from_ms(row.updated),
        title_at=row.id if _own_title(row.title) else None,
        parent=row.forked,
        rank=rank,
    )
    session.work_in(row.folder)
    return session


def _apply_message(session: SessionState, message: OpenCodeMessage) -> bool:
    if message.role not in ("user", "assistant"):
        return False
    if session.active is None:
        session.active = not message.ends_turn
    if message.role == "user":
        return False
    name, _, _ = message.named
    session.model = session.model or name
    if message.is_summary:
        session.track = session.track.compaction()
        return True
    if message.tokens is None:
        return False
    usage = message.tokens.usage
    if usage.prompt_tokens or (message.time and message.time.completed):
        # A reply without prompt tokens or a completion time is still running.
        session.track = session.track.call(CallSize.of(usage, name))
    return session.track.newest is not None


def _session_with_size(connection: sqlite3.Connection, row: _Row) -> SessionState:
    session = _make_session(row, rank=1)
    compacted = _time_of_compaction(connection, row.id)
    for kind, at, data in _newest_messages(connection, row.id):
        if at < compacted or kind in _COMPACTIONS:
            break
        with suppress(msgspec.DecodeError):
            message = decode(data)
            message.role = message.role or kind
            if _apply_message(session, message):
                return session
    else:
        if not compacted:
            return session
    session.track = session.track.compaction()
    return session


def _newest_messages(
    connection: sqlite3.Connection, session: str
) -> Iterator[tuple[str | None, int, bytes]]:
    for table, kind, order in (
        ("session_message", "type", "seq"),
        ("message", "NULL", "time_created"),
    ):
        known = columns(connection, table)
        if not {"session_id", "data"} <= known:
            continue
        at = "time_created" if "time_created" in known else "time_updated"
        rows = connection.execute(
            f"SELECT {kind}, CAST(COALESCE({at}, 0) AS INTEGER), CAST(COALESCE(data, '') AS BLOB)"  # noqa: S608
            f" FROM {table} WHERE session_id = ?"
            f" ORDER BY {order} DESC LIMIT {_NEWEST}",
            (session,),
        ).fetchall()
        if rows:
            yield from rows
            return


def _newest_parts(connection: sqlite3.Connection, session: str) -> Iterator[_Part]:
    """Yield the parts of a session's newest message. Ids increase with time."""
    if not {"id", "message_id", "session_id", "data"} <= columns(connection, "part"):
        return
    rows = connection.execute(
        "SELECT CAST(data AS BLOB) FROM part WHERE session_id = ?1 AND message_id ="
        " (SELECT message_id FROM part WHERE session_id = ?1 ORDER BY id DESC LIMIT 1)",
        (session,),
    )
    for (data,) in rows:
        with suppress(msgspec.DecodeError):
            yield _decode_part(data)


def _measure(connection: sqlite3.Connection, session: str, sizes: ContextSizes) -> None:
    needed = {"id", "session_id", "data"}
    if not (needed <= columns(connection, "message") and needed <= columns(connection, "part")):
        return
    known = ""
    rows = connection.execute(
        "SELECT message.id, CAST(message.data AS BLOB), CAST(part.data AS BLOB)"
        " FROM message LEFT JOIN part ON part.message_id = message.id"
        " WHERE message.session_id = ? ORDER BY message.time_created, message.id, part.id",
        (session,),
    )
    role = None
    for name, data, part in rows:
        with suppress(msgspec.DecodeError):
            if name != known:
                known, message = name, decode(data or b"")
                role = message.role
                if message.is_summary:
                    sizes.compact()
                elif role == "assistant" and message.tokens is not None:
                    sizes.add_prompt(message.tokens.usage.prompt_tokens)
            if part is not None:
                _decode_part(part).add_to(sizes, role)


def _judge_replies(
    connection: sqlite3.Connection, session: str, replies: list[OpenCodeMessage]
) -> dict[str | None, CacheLoss | None]:
    """Return the verdict on each new reply's call whether it lost its cache, by request."""
    first = min(message.created for message in replies)
    state = SessionState(session)
    before = []
    for _, _, data in _newest_messages(connection, session):
        with suppress(msgspec.DecodeError):
            before.append(decode(data))
    older = [message for message in before if message.created < first]
    losses = {}
    for message in sorted([*older, *replies], key=lambda message: message.created):
        if message.is_summary:
            state.note(is_compacted=True)
        state.note(effort=message.variant or "default")
        for call in message.calls(session, None, is_child=False):
            if call.category == "main" and call.counts:
                facts, state.facts = state.facts, state.facts.after_call()
                losses[call.request_id] = state.judge(replace(call, facts=facts)).loss
    return losses


def _time_of_compaction(connection: sqlite3.Connection, session: str) -> int:
    """Return when a session was last compacted, in milliseconds since 1970, or 0 if never.

    Only the start of each part is searched, because the part's type is stored there.
    """
    if not {"session_id", "time_created", "data"} <= columns(connection, "part"):
        return 0
    row = connection.execute(
        "SELECT max(CAST(time_created AS INTEGER)) FROM part WHERE session_id = ?"
        ' AND instr(substr(data, 1, 200), \'"type":"compaction"\') > 0',
        (session,),
    ).fetchone()
    return int(row[0] or 0)


def _events_of_session(store: Store, data: bytes) -> StoreRead:
    file = decode_document(data, _SessionFile)
    if file.id is None or file.parent_id:
        return StoreRead()
    updated = (file.time or _SessionTime()).updated
    session = _make_session(_Row(file.id, file.directory, None, file.title, updated), rank=0)
    messages = Path(store.path).parents[2] / "message" / file.id
    # Newer messages have higher ids.
    for name in sorted((entry.path for entry in list_folder(messages)), reverse=True)[:_NEWEST]:
        message = try_decode_file(name, OpenCodeMessage)
        if message is not None and _apply_message(session, message):
            break
    return StoreRead(sessions=[session.snapshot()])
