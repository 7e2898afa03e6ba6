"""Reads Copilot's chat sessions in VS Code: `chatSessions/<session>.jsonl` (formerly `.json`).

The extension may also write debug logs and a database of traces, which are more accurate. Calls
are read from the traces if possible, then from the debug log, and otherwise from the chat session.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import msgspec

from sidecar import typed
from sidecar.agents.context_sizes import ContextSizes
from sidecar.agents.databases import DatabaseState, read_database
from sidecar.agents.fields import decode_file, time_from_ms, time_from_ns
from sidecar.agents.file_reading import LONGEST_LINE
from sidecar.agents.folders import Places, Roots, editor_folders
from sidecar.agents.readers import copilot_spans as spans
from sidecar.agents.readers.copilot_requests import (
    AGENT,
    INITIAL,
    PUSH,
    ContentChat,
    Mutation,
    StoredChat,
    apply_mutation,
    calls_of,
    decode_mutation,
)
from sidecar.agents.session_events import CallFinished, Store, StoredSession, StoreRead, StoreReader
from sidecar.agents.store_files import database_store, list_folder, store_from_path
from sidecar.agents.stores import (
    NOT_VISIBLE,
    Lines,
    SessionState,
    StartOverError,
    read_lines,
    read_records,
    reader_state,
    record_at,
)
from sidecar.agents.vscode_storage import (
    Storage,
    is_server,
    local_path,
    own_window,
    storage,
    storages,
)

_SUFFIXES = (".jsonl", ".json")
_CHATS, _EMPTY = "chatSessions", "emptyWindowChatSessions"
_EXTENSION = "GitHub.copilot-chat"
_LOGS, _TRANSCRIPTS, _TRACES = "debug-logs", "transcripts", "agent-traces.db"
_MAIN = "main.jsonl"
_TRANSCRIPT, _CHAT, _LOG, _TRACE = range(-1, 3)
"""The rank of each store type. A session is read from its store with the highest rank."""
_TITLE = ("customTitle",)

AnyChat = TypeVar("AnyChat", bound=StoredChat)


class CopilotChat(StoreReader):
    def folders(self, places: Places) -> tuple[str, ...]:
        return tuple(
            path for user in editor_folders(places, AGENT) for path in _folders_to_watch(user)
        )

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        for user in editor_folders(places, AGENT):
            for one in storages(user):
                if roots is None or roots.contains("\n".join(one.named_folders)):
                    yield from _stores_of_project(one.path)
            yield from _chat_stores(str(user / "globalStorage" / _EMPTY))
            yield from _stores_at(str(user / "globalStorage" / _EXTENSION.lower() / _TRACES))

    def store_at(self, places: Places, path: str) -> Store | None:
        path = path.removesuffix("-wal").removesuffix("-shm")
        inside = any(path.startswith(f"{user}{os.sep}") for user in editor_folders(places, AGENT))
        return next(_stores_at(path), None) if inside else None

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        kind, path = _kind_of_file(store.path), Path(store.path)
        if kind == _TRACE:
            events_of = partial(spans.trace_events, partial(_project_with_session, path.parents[2]))
            return read_database(store, state, DatabaseState, events_of)
        if kind == _TRANSCRIPT:
            session = _transcript_session(store)
            return StoreRead(sessions=[session])
        if kind == _LOG:
            return read_lines(store, state, partial(_log_state, path))
        before = _known_until(state)
        if path.suffix == ".json":
            return _read_flat(store, before)
        return read_lines(store, state, partial(_State.of, store.path, before))

    def title(self, store: Store, title_at: str) -> str | None:
        if store.path.endswith(".json"):
            return decode_file(store.path, StoredChat).custom_title
        return _title_of_line(store.path, title_at)

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:
        """Add the parts of a session's chat file. `path` may be any of the session's stores."""
        chat_path = _chat_of(path, session)
        if chat_path is None:
            return
        if chat_path.endswith(".json"):
            chat = decode_file(chat_path, ContentChat)
        else:
            chat = ContentChat()
            for one in read_records(chat_path, decode_mutation):
                with suppress(msgspec.DecodeError):
                    chat = _apply_line(chat, one)
        chat.add_to(sizes)


@lru_cache(maxsize=256)
def _title_of_line(path: str, title_at: str) -> str | None:
    change = record_at(path, title_at.partition("@")[0], decode_mutation, LONGEST_LINE)
    if change is None:
        return None
    try:
        if change.kind == INITIAL:
            return typed.decode_leniently(change.value, StoredChat).custom_title
        return typed.decode(change.value, str) if change.path == _TITLE else None
    except msgspec.DecodeError:
        return None


READER = CopilotChat()


class _State(msgspec.Struct):
    path: str
    session: SessionState
    chat: StoredChat = msgspec.field(default_factory=StoredChat)
    until: float | None = None
    """The time of the first call in a more accurate store, in milliseconds since 1970."""
    is_shown: bool = False

    @classmethod
    def of(cls, path: str, until: float | None = None) -> _State:
        return cls(path, SessionState(_session_of(path), rank=_CHAT), until=until)

    def read(self, lines: Lines) -> Iterable[CallFinished]:
        """Replay the lines and return their calls.

        The result includes calls in turns that later lines remove.
        """
        self.find_better_stores()
        calls: dict[str | None, CallFinished] = {}
        changed: set[int] = set()
        for one in lines.records(decode_mutation):
            try:
                if _moves_turns(one):
                    calls |= self.calls(changed)
                known = len(self.chat.requests or ())
                self.chat = _apply_line(self.chat, one)
            except msgspec.DecodeError:
                lines.skipped += 1
                continue
            if self.chat.custom_title or one.path == _TITLE:
                # The modification time is included because the position is invalid after a rewrite.
                self.session.title_at = f"{lines.position}@{os.stat(self.path).st_mtime_ns}"
                self.chat.custom_title = None
            changed = _changed_turns(self.chat, one, changed, known)
        calls |= self.calls(changed)
        return calls.values()

    def find_better_stores(self) -> None:
        """Set `until` to the time of this session's first call in the traces or the debug log."""
        traced = spans.traced_since(str(_traces_of(self.path)), _session_of(self.path))
        begins = (traced, spans.log_begins(str(_log_of(self.path))), self.until)
        self.until = min((at for at in begins if at is not None), default=None)

    def calls(self, numbers: Iterable[int]) -> dict[str | None, CallFinished]:
        """Return the calls in the given turns that started before `until`, keyed by id."""
        name, requests = self.chat.session_id or self.session.id, self.chat.requests or ()
        turns = (requests[number] for number in numbers if number < len(requests))
        session = SessionState(name, folder="\n".join(_project_of(self.path).named_folders))
        return {
            call.request_id: call
            for turn in turns
            if turn is not None and (self.until is None or (turn.timestamp or 0) < self.until)
            for call in calls_of(turn, session)
        }

    def snapshots(self) -> Iterable[StoredSession]:
        chat, session = self.chat, self.session
        if not chat.turns:
            if self.is_shown:
                raise StartOverError  # the session has become empty and must be removed
            return ()
        self.is_shown = True
        newest = chat.turns[-1]
        own = local_path(chat.working_directory, on_server=is_server(self.path))
        folders = (*_project_of(self.path).named_folders, own or "")
        session.id = chat.session_id or session.id
        session.first_folder = session.folder = "\n".join(filter(None, folders)) or None
        session.began_at = time_from_ms(chat.turns[0].timestamp)
        session.updated_at = newest.ended_at or time_from_ns(os.stat(self.path).st_mtime_ns)
        session.model, session.active, session.track = newest.model, newest.is_live, chat.track
        session.window = _window_of_model(self.path, chat)
        return (session.snapshot(),)


def _read_flat(store: Store, until: float | None) -> StoreRead:
    state = _State.of(store.path, until)
    state.chat = decode_file(store.path, StoredChat)
    state.find_better_stores()
    if state.chat.custom_title:
        state.session.title_at = state.session.id
        state.chat.custom_title = None
    calls = state.calls(range(len(state.chat.requests or ()))).values()
    return StoreRead(
        [call for call in calls if call.counts],
        [*state.snapshots()],
        state=msgspec.msgpack.encode(_Until(state.until)),
        bytes_read=store.size,
    )


class _Until(msgspec.Struct, frozen=True, array_like=True, tag="until"):
    until: float | None


def _moves_turns(one: Mutation) -> bool:
    return one.kind == INITIAL or (one.path[:1] == ("requests",) and len(one.path) < 3)


def _changed_turns(chat: StoredChat, one: Mutation, before: set[int], known: int) -> set[int]:
    if not _moves_turns(one):
        number = one.path[1] if one.path[:1] == ("requests",) else None
        return before | {number} if isinstance(number, int) else before
    start = 0
    if one.kind == PUSH and one.path == ("requests",):
        start = known if one.length is None else max(0, one.length)
    return set(range(start, len(chat.requests or ())))


def _apply_line(chat: AnyChat, one: Mutation) -> AnyChat:
    """Apply a line to a chat session, and return the resulting session.

    Raises:
        msgspec.DecodeError: A value has the wrong type.
    """
    if one.kind == INITIAL:
        return typed.decode_leniently(one.value, type(chat))
    apply_mutation(chat, one)
    return chat


def _window_of_model(path: str, chat: StoredChat) -> int | None:
    window = chat.window
    name, user = (chat.selected or "").rpartition("/")[2], _user_of(path)
    if window is None and name:
        window = spans.window_in(str(_log_of(path).parent), name)
    return own_window(user, name) if window is None and name and user else window


def _log_state(path: Path) -> spans.LogState:
    name = _session_of(str(path))
    session = SessionState(name, rank=_LOG)
    session.work_in("\n".join(_project_of(str(path)).named_folders))
    return spans.LogState(
        session,
        str(path.parent),
        child=path.name != _MAIN,
        until=spans.traced_since(str(_traces_of(str(path))), name),
    )


def _transcript_session(store: Store) -> StoredSession:
    session = SessionState(_session_of(store.path), rank=_TRANSCRIPT)
    session.work_in("\n".join(_project_of(store.path).named_folders))
    return session.snapshot("lower bound", note=NOT_VISIBLE)


def _folders_to_watch(user: Path) -> Iterator[str]:
    for entry in list_folder(user / "workspaceStorage"):
        yield os.path.join(entry.path, _CHATS)
        yield os.path.join(entry.path, _EXTENSION)
    for name in (_EMPTY, _EXTENSION.lower()):
        yield str(user / "globalStorage" / name)


def _stores_of_project(path: str) -> Iterator[Store]:
    chats, extension = os.path.join(path, _CHATS), os.path.join(path, _EXTENSION)
    yield from _chat_stores(chats)
    for session in list_folder(os.path.join(extension, _LOGS)):
        for entry in list_folder(session.path):
            yield from _stores_at(entry.path)
    if not os.path.isdir(chats):
        for entry in list_folder(os.path.join(extension, _TRANSCRIPTS)):
            yield from _stores_at(entry.path)


def _chat_stores(folder: str) -> Iterator[Store]:
    names = {entry.name for entry in list_folder(folder)}
    for name in sorted(names):
        if name.endswith(".jsonl") or f"{name}l" not in names:
            yield from _stores_at(os.path.join(folder, name))


def _stores_at(path: str) -> Iterator[Store]:
    kind, store = _kind_of_file(path), None
    if kind == _TRACE:
        store = database_store(AGENT, path)
    elif kind is not None:
        store = store_from_path(AGENT, path, live=kind != _LOG or os.path.basename(path) == _MAIN)
    if store is not None:
        yield store


def _kind_of_file(path: str) -> int | None:
    parts = tuple(path.split(os.sep)[-4:])
    if parts[-2:] == (_EXTENSION.lower(), _TRACES):
        return _TRACE
    if not path.endswith(_SUFFIXES) or len(parts) < 4:
        return None
    if parts[-2] in (_CHATS, _EMPTY):
        return _CHAT
    if parts[-3:-1] == (_EXTENSION, _TRANSCRIPTS):
        return _TRANSCRIPT
    return _LOG if parts[:2] == (_EXTENSION, _LOGS) and path.endswith(".jsonl") else None


def _storage_of(path: str) -> Path:
    above = Path(path).parents
    return above[{_CHAT: 1, _TRANSCRIPT: 2, _LOG: 3}[_kind_of_file(path) or _CHAT]]


def _project_of(path: str) -> Storage:
    return storage(str(_storage_of(path)))


def _session_of(path: str) -> str:
    return Path(path).parent.name if _kind_of_file(path) == _LOG else Path(path).stem


def _log_of(chat: str) -> Path:
    return _storage_of(chat) / _EXTENSION / _LOGS / Path(chat).stem / _MAIN


def _chat_of(path: str, session: str) -> str | None:
    """Return the path of the chat session for any type of store."""
    kind = _kind_of_file(path)
    if kind == _CHAT:
        return path
    traced = _project_with_session(Path(path).parents[2], session).path if kind == _TRACE else None
    folder = Path(traced) if traced is not None else _storage_of(path)
    names = (str(folder / _CHATS / f"{session}{suffix}") for suffix in _SUFFIXES)
    return next(filter(os.path.isabs, filter(os.path.exists, names)), None)


def _user_of(path: str) -> Path | None:
    above = Path(path).parents
    return next((one.parent for one in above if one.name.endswith("Storage")), None)


def _traces_of(path: str) -> Path:
    user = _user_of(path) or Path(path).parent
    return user / "globalStorage" / _EXTENSION.lower() / _TRACES


def _project_with_session(user: Path, session: str) -> Storage:
    for one in storages(user):
        folder = Path(one.path)
        names = (folder / _CHATS / f"{session}{suffix}" for suffix in _SUFFIXES)
        if any(map(os.path.exists, (*names, folder / _EXTENSION / _LOGS / session))):
            return one
    return Storage("", ())


def _known_until(state: bytes) -> float | None:
    known = reader_state(state, _State)
    if known is not None:
        return known.until
    try:
        return msgspec.msgpack.decode(state, type=_Until).until
    except msgspec.DecodeError:
        return None
