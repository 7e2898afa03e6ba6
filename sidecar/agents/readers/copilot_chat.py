"""VS Code's Copilot Chat: `workspaceStorage/<id>/chatSessions/<session>.jsonl` (older: `.json`).

The extension may write more exactly beside it: a database of traces, and debug logs. Of a session,
each call is taken from the best of the three that has it: traces, debug log, chat session.
"""

from __future__ import annotations

import os
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.agents import mutations
from sidecar.agents.databases import LastRow, fold_database, read_only
from sidecar.agents.fields import from_ms, whole, whole_file
from sidecar.agents.folding import Folded, fold_lines, fold_whole
from sidecar.agents.homes import editors
from sidecar.agents.line_files import state_of
from sidecar.agents.listing import database, entries, stat_of
from sidecar.agents.occupancy import NOT_VISIBLE, Track, occupancy
from sidecar.agents.readers import copilot_spans as spans
from sidecar.agents.readers.copilot_requests import AGENT, Chat, calls_of
from sidecar.agents.values import Glance, Occupancy, Reading, stored
from sidecar.agents.vscode import is_server, local_path, own_window, storage, storages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sidecar.agents.places import Places
    from sidecar.agents.reader import Look
    from sidecar.agents.roots import Roots
    from sidecar.agents.values import Batch, Call, Found, Mark

_SUFFIXES = (".jsonl", ".json")
_CHATS, _EMPTY = "chatSessions", "emptyWindowChatSessions"
_EXTENSION = "GitHub.copilot-chat"
_LOGS, _TRANSCRIPTS, _TRACES = "debug-logs", "transcripts", "agent-traces.db"
_MAIN = "main.jsonl"
_TRANSCRIPT, _CHAT, _LOG, _TRACE = range(-1, 3)
"""Ranks of the stores of one session."""
_KIND_WITHIN = 160
_CONTENT = (b',"response"', b',"message"', b',"variableData"', b',"contentReferences"')


class _State(msgspec.Struct):
    """Of a chat session, after some of its lines."""

    session: str
    workspace: str
    chat: Chat = msgspec.field(default_factory=Chat)
    until: float | None = None
    """Milliseconds since 1970: turns from here on stand in a better store."""


class CopilotChat:
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT

    def folders(self, places: Places) -> tuple[str, ...]:
        return tuple(path for user in editors(places, AGENT) for path in _watched(user))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:
        for user in editors(places, AGENT):
            for one in storages(user):
                if roots is None or one.of(roots) is not None:
                    yield from _of_storage(one.path)
            yield from _chats(user / "globalStorage" / _EMPTY)
            yield from _found(str(user / "globalStorage" / _EXTENSION.lower() / _TRACES))

    def store_at(self, places: Places, path: str) -> Found | None:
        path = path.removesuffix("-wal").removesuffix("-shm")
        inside = any(path.startswith(f"{user}{os.sep}") for user in editors(places, AGENT))
        return next(_found(path), None) if inside else None

    def glance(self, look: Look) -> Glance:
        found, roots = look.found, look.roots
        kind = _kind(found.path)
        if kind == _TRACE:
            return _glance_traces(found, roots)
        cwd = storage(str(_storage_of(found.path))).of(roots)
        if kind == _CHAT:
            return _glance_chat(found, cwd, roots, look.before)
        if cwd is None:
            return Glance(found)
        return _glance_log(found, cwd) if kind == _LOG else _glance_transcript(found, cwd)

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        kind, path = _kind(found.path), Path(found.path)
        if kind == _TRACE:
            fold = partial(spans.fold_traces, lru_cache(partial(_workspace_of, path.parents[2])))
            return fold_database(found, mark, LastRow(), fold)
        if kind == _TRANSCRIPT:
            return iter(())
        folders = storage(str(_storage_of(found.path))).folders
        workspace_name = folders[0] if folders else ""
        session = _session_of(found.path)
        traced = spans.traced_since(str(_traces_of(found.path)), session)
        if kind == _LOG:
            log = spans.LogState(session, workspace_name, path.name != _MAIN, traced)
            return fold_lines(found, mark, log, spans.fold_log)
        begins = (traced, spans.log_begins(str(_log_of(found.path))), _known_until(mark))
        until = min((at for at in begins if at is not None), default=None)
        state = _State(session, workspace_name, until=until)
        if found.path.endswith(".json"):
            return fold_whole(found, mark, state, _fold_whole)
        return fold_lines(found, mark, state, partial(_fold_untitled, until))


READER = CopilotChat()


def _fold(until: float | None, before: _State, data: bytes) -> Folded[_State]:
    """Replay some lines; turns that are taken back among them were billed all the same."""
    state = msgspec.structs.replace(before, until=until)
    calls: dict[str, Call] = {}
    changed: set[int] = set()
    skipped = 0
    for line in data.split(b"\n"):
        if not _matters(line):
            continue
        try:
            one = mutations.entry(line)
            if _moves_turns(one):
                calls |= _calls(state, changed)
            known = len(state.chat.requests or ())
            state.chat = _replayed(state.chat, one)
        except msgspec.DecodeError:
            skipped += 1
            continue
        changed = _changed(state.chat, one, changed, known)
    calls |= _calls(state, changed)
    return Folded(state, tuple(calls.values()), skipped)


def _fold_untitled(until: float | None, before: _State, data: bytes) -> Folded[_State]:
    """What the ledger keeps: a title is made of what was said."""
    folded = _fold(until, before, data)
    folded.state.chat.custom_title = None
    return folded


def _moves_turns(one: mutations.Mutation) -> bool:
    """Whether turns may go away, or others come into their places."""
    return one.kind == mutations.INITIAL or (one.path[:1] == ("requests",) and len(one.path) < 3)


def _changed(chat: Chat, one: mutations.Mutation, before: set[int], known: int) -> set[int]:
    """The turns whose calls are to be handed on, after one more line."""
    if not _moves_turns(one):
        number = one.path[1] if one.path[:1] == ("requests",) else None
        return before | {number} if isinstance(number, int) else before
    start = 0
    if one.kind == mutations.PUSH and one.path == ("requests",):
        start = known if one.length is None else max(0, one.length)
    return set(range(start, len(chat.requests or ())))


def _fold_whole(state: _State, data: bytes) -> Folded[_State]:
    chat = whole(data, Chat)
    state = msgspec.structs.replace(state, session=chat.session_id or state.session)
    state.chat, chat.custom_title = chat, None
    return Folded(state, tuple(_calls(state, range(len(chat.requests or ()))).values()))


def _calls(state: _State, numbers: Iterable[int]) -> dict[str, Call]:
    """The calls of turns by their ids, but those that a better store has."""
    session, requests = state.chat.session_id or state.session, state.chat.requests or ()
    turns = (requests[number] for number in numbers if number < len(requests))
    return {
        call.request: call
        for turn in turns
        if turn is not None and (state.until is None or (turn.timestamp or 0) < state.until)
        for call in calls_of(turn, session, state.workspace)
    }


def _replayed(chat: Chat, one: mutations.Mutation) -> Chat:
    """A session after one more line, which changes it. Raises msgspec.DecodeError."""
    if one.kind == mutations.INITIAL:
        return typed.decode(one.value, Chat)
    mutations.apply(chat, one)
    return chat


def _matters(line: bytes) -> bool:
    """Whether a line may change what is kept: most are about a reply's parts."""
    if not line.strip():
        return False
    path = line[: line.find(b"]", 0, _KIND_WITHIN) + 1]
    return b'"kind":0' in line[:40] or not any(name in path for name in _CONTENT)


def _glance_chat(found: Found, cwd: str | None, roots: Roots, before: Glance | None) -> Glance:
    chat, mark = _chat_of(found, before)
    own = local_path(chat.working_directory, on_server=is_server(found.path))
    cwd = cwd or (own if roots.hold(own) else None)
    skipped = mark.skipped if mark else 0
    if cwd is None or not chat.turns:
        return Glance(found, skipped=skipped, memory=mark)
    newest = chat.turns[-1]
    session = stored(
        found,
        chat.session_id or Path(found.path).stem,
        cwd,
        newest.ended_at,
        occupancy(chat.track, window=_window(found.path, chat)),
        model=newest.model,
        title=chat.custom_title,
        active=newest.is_live,
        rank=_CHAT,
    )
    return Glance(found, (session,), skipped, mark)


def _chat_of(found: Found, before: Glance | None) -> tuple[Chat, Mark | None]:
    """A session as its file leaves it, replayed from where the last glance came to."""
    if found.path.endswith(".json"):
        return whole_file(found.path, Chat), None
    start = _State("", "")
    read = partial(fold_lines, found, start=start, fold=partial(_fold, None))
    state, mark = state_of(read, before, start)
    return state.chat, mark


def _window(path: str, chat: Chat) -> int | None:
    """The window of the selected model: by the session, the debug log's list, the user's list."""
    window = chat.window
    name, user = (chat.selected or "").rpartition("/")[2], _user_of(path)
    if window is None and name:
        window = spans.window_in(str(_log_of(path).parent), name)
    return own_window(user, name) if window is None and name and user else window


def _glance_log(found: Found, cwd: str) -> Glance:
    newest = spans.newest_in_log(found.path)
    model = newest.track.newest.model if newest.track.newest else None
    window = spans.window_in(os.path.dirname(found.path), model)
    size, name = occupancy(newest.track, window=window), _session_of(found.path)
    session = stored(
        found, name, cwd, newest.at, size, model=model, active=newest.active, rank=_LOG
    )
    return Glance(found, (session,), newest.skipped)


def _glance_transcript(found: Found, cwd: str) -> Glance:
    """A conversation whose numbers lie on the machine that shows its window."""
    size = Occupancy(quality="lower bound", note=NOT_VISIBLE)
    session = stored(found, _session_of(found.path), cwd, None, size, rank=_TRANSCRIPT)
    return Glance(found, (session,))


def _glance_traces(found: Found, roots: Roots) -> Glance:
    user = _user_of(found.path)
    folders = {one.path: cwd for one in storages(user) if (cwd := one.of(roots))} if user else {}
    known = {
        _session_of(store.path): cwd for path, cwd in folders.items() for store in _of_storage(path)
    }
    with read_only(found.path) as connection:
        newest = spans.newest_traced(connection, tuple(known))
    sessions = tuple(
        stored(
            found,
            one.session,
            known[one.session],
            from_ms(one.at_ms),
            occupancy(Track(newest=Reading.of(one.usage, one.model))),
            model=one.model,
            rank=_TRACE,
        )
        for one in newest
    )
    return Glance(found, sessions)


def _watched(user: Path) -> Iterator[str]:
    """The folders that stores are in: other extensions fill theirs with many thousands."""
    for entry in entries(user / "workspaceStorage"):
        yield os.path.join(entry.path, _CHATS)
        yield os.path.join(entry.path, _EXTENSION)
    for name in (_EMPTY, _EXTENSION.lower()):
        yield str(user / "globalStorage" / name)


def _of_storage(path: str) -> Iterator[Found]:
    """The stores of one project's folder."""
    folder = Path(path)
    yield from _chats(folder / _CHATS)
    extension = folder / _EXTENSION
    for session in entries(extension / _LOGS):
        for entry in entries(session.path):
            yield from _found(entry.path)
    if not (folder / _CHATS).is_dir():
        for entry in entries(extension / _TRANSCRIPTS):
            yield from _found(entry.path)


def _chats(folder: Path) -> Iterator[Found]:
    """The chat sessions in a folder; of one in both forms the log, which VS Code reads first."""
    names = {entry.name for entry in entries(folder)}
    for name in sorted(names):
        if name.endswith(".jsonl") or f"{name}l" not in names:
            yield from _found(str(folder / name))


def _found(path: str) -> Iterator[Found]:
    """The store at a path, where it is one."""
    kind, store = _kind(path), None
    if kind == _TRACE:
        store = database(AGENT, path)
    elif kind is not None:
        store = stat_of(AGENT, path, live=kind != _LOG or os.path.basename(path) == _MAIN)
    if store is not None:
        yield store


def _kind(path: str) -> int | None:
    """Which of the stores a file is."""
    parts = Path(path).parts[-4:]
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
    """The project's folder that a store lies in."""
    above = Path(path).parents
    return above[{_CHAT: 1, _TRANSCRIPT: 2, _LOG: 3}[_kind(path) or _CHAT]]


def _session_of(path: str) -> str:
    return Path(path).parent.name if _kind(path) == _LOG else Path(path).stem


def _log_of(chat: str) -> Path:
    return _storage_of(chat) / _EXTENSION / _LOGS / Path(chat).stem / _MAIN


def _user_of(path: str) -> Path | None:
    """The user data that a store lies in."""
    above = Path(path).parents
    return next((one.parent for one in above if one.name.endswith("Storage")), None)


def _traces_of(path: str) -> Path:
    user = _user_of(path) or Path(path).parent
    return user / "globalStorage" / _EXTENSION.lower() / _TRACES


def _workspace_of(user: Path, session: str) -> str:
    """The project's folder that a session is about; "" where it is not known."""
    for one in storages(user):
        folder = Path(one.path)
        names = (folder / _CHATS / f"{session}{suffix}" for suffix in _SUFFIXES)
        if any(map(os.path.exists, (*names, folder / _EXTENSION / _LOGS / session))):
            return one.folders[0] if one.folders else ""
    return ""


def _known_until(mark: Mark | None) -> float | None:
    """From when on a better store had the turns, as it was known at the last reading."""
    if mark is None or not mark.state:
        return None
    try:
        return msgspec.msgpack.decode(mark.state, type=_State).until
    except msgspec.DecodeError:
        return None
