"""Reads Gemini CLI's sessions, including the files of sub-agents.

A session is stored in `tmp/<project>/chats/session-*.jsonl` (formerly `.json`). Each line is a
message. A changed message is written again with the same id. `$set` replaces fields of the session,
and may replace all messages. `$rewindTo` removes a message and everything after it, but these
messages are still billed. A resumed session repeats its messages without token counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from sidecar import typed
from sidecar.agents.context_sizes import ContextSizes, PartKind
from sidecar.agents.file_reading import (
    CamelRecord,
    Record,
    TokenCount,
    cached_until_changed,
    decode_document,
    decode_file,
    parse_iso_time,
    reported_usage,
)
from sidecar.agents.folders import Places, Roots, folder_digest
from sidecar.agents.session_events import CallFinished, CallSize, Store, StoredSession, StoreRead
from sidecar.agents.stores import (
    ContextTrack,
    LineReader,
    Lines,
    SessionLines,
    SessionState,
    StartOverError,
    list_folder,
    read_document,
    record_at,
    store_from_path,
)
from sidecar.messages.vendor_usage import Usage

_KEPT = 50
"""How many messages to keep between reads. After a longer rewind, the file is read again."""
_NOTHING = (b"", b"null", b"[]", b'""')


class _Tokens(Record):
    input: TokenCount = None
    """The size of the complete prompt, including cached tokens."""
    output: TokenCount = None
    cached: TokenCount = None
    thoughts: TokenCount = None
    """The number of thinking tokens, which are not included in `output`."""
    tool: TokenCount = None
    """The number of prompt tokens for tool use, which are not included in `input`."""

    @property
    def usage(self) -> Usage:
        thoughts = self.thoughts or 0
        prompt = (self.input or 0) + (self.tool or 0)
        output = (self.output or 0) + thoughts
        return reported_usage(prompt, output, self.cached, reasoning=thoughts)


class _ToolCall(CamelRecord):
    name: str | None = None
    args: msgspec.Raw = msgspec.Raw(b"")
    result: msgspec.Raw = msgspec.Raw(b"")

    @property
    def is_stopped_by_hook(self) -> bool:
        """Whether a hook ended the turn instead of running the tool."""
        return b'"error":"Agent execution stopped by hook: ' in bytes(self.result)


class _Message(CamelRecord):
    id: str | None = None
    type: str | None = None
    timestamp: str | None = None
    model: str | None = None
    tokens: _Tokens | None = None
    content: msgspec.Raw = msgspec.Raw(b"")
    tool_calls: list[_ToolCall] | None = None

    @property
    def reading(self) -> CallSize | None:
        """The call's size, or None if the message has no token counts."""
        if self.type != "gemini" or self.tokens is None:
            return None
        return CallSize.of(self.tokens.usage, self.model)

    @property
    def ends_turn(self) -> bool:
        """Whether the agent is idle after this message: it is a turn's last reply, or no prompt.

        Tool calls are added to a message after the tools have run. Until then, a reply with only
        tool calls is empty.
        """
        if self.type != "gemini":
            return self.is_context
        if self.tool_calls:
            return any(call.is_stopped_by_hook for call in self.tool_calls)
        return bytes(self.content) not in _NOTHING

    @property
    def is_context(self) -> bool:
        """Whether this is the first message of a session, which the user did not write."""
        return b"<session_context>" in bytes(self.content)[:64]

    def add_parts(self, sizes: ContextSizes) -> None:
        if self.type not in ("user", "gemini"):
            return
        kind: PartKind = "assistant" if self.type == "gemini" else "user"
        if self.is_context:
            kind = "instructions"
        sizes.add(kind, self.content)
        for call in self.tool_calls or ():
            sizes.add("call", call.args, call.name or "")
            sizes.add("result", call.result, call.name or "")


class _Fields(CamelRecord):
    session_id: str | None = None
    last_updated: str | None = None
    summary: str | None = None
    messages: list[_Message] | None = None


class _Line(_Message):
    set_: _Fields | None = msgspec.field(default=None, name="$set")
    rewind_to: str | None = msgspec.field(default=None, name="$rewindTo")
    session_id: str | None = None
    summary: str | None = None

    @property
    def title(self) -> str | None:
        return (self.set_.summary if self.set_ else None) or self.summary


_line = typed.decoder(_Line)


class GeminiCli(LineReader):
    inner = ("tmp",)
    pattern = r"[^/]+/chats/(.*/)?[^/]*\.jsonl?"

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        for folder in self.searched_folders(places):
            for project in list_folder(folder):
                if roots is None or roots.contains(_folder_of_project(project.path)):
                    yield from self.stores_in(folder, os.path.join(project.path, "chats"))

    def make_store(self, path: str) -> Store | None:
        is_main = os.path.basename(os.path.dirname(path)) == "chats"
        return store_from_path(self.agent, path, live=is_main)

    def begin(self, store: Store) -> _Log:
        return _Log.of(store)

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        is_document = store.path.endswith(".json")
        return read_document(store, _events_of) if is_document else super().read(store, state)

    def title(self, store: Store, title_at: str) -> str | None:
        if store.path.endswith(".json"):
            return decode_file(store.path, _Fields).summary
        line = record_at(store.path, title_at, _line)
        return line.title if line else None

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:
        if not path.endswith(".json"):
            super().measure(path, session, sizes)
            return
        for message in decode_file(path, _Fields).messages or ():
            message.add_parts(sizes)


READER = GeminiCli()


class _Kept(NamedTuple):
    """What is remembered about a message, which may change or be removed."""

    id: str
    reading: CallSize | None
    sizes: ContextSizes

    def add_to(self, sizes: ContextSizes) -> None:
        if self.reading is not None:
            sizes.add_prompt(self.reading.prompt)
        sizes.merge(self.sizes)


class _Log(SessionLines):
    subagent: str = ""
    """The name of the sub-agent's file, or an empty string for a main conversation."""
    first: str | None = None
    """The first message's id."""
    messages: list[_Kept] = msgspec.field(default_factory=list)
    """The latest messages."""
    older: ContextSizes = msgspec.field(default_factory=ContextSizes)
    """The sizes of the messages that were dropped from `messages`."""
    has_older: bool = False
    """Whether older messages were dropped from `messages`."""

    @classmethod
    def of(cls, store: Store) -> _Log:
        path = Path(store.path)
        project, name = path.parents[1], path.stem
        if not store.live:  # a sub-agent's file is in a folder named after its session
            project, name = path.parents[2], path.parent.name
        session = SessionState(name)
        session.work_in(_folder_of_project(str(project)))
        subagent = "" if store.live else path.stem
        return cls(session, subagent)

    def read(self, lines: Lines) -> Iterable[CallFinished]:
        calls: dict[str | None, CallFinished] = {}
        for line in lines.records(_line):
            messages = self._apply(line)
            for call in self.calls(messages):
                known = calls.get(call.request_id)
                # What was noted before a reply belongs to its first version.
                calls[call.request_id] = replace(call, facts=known.facts) if known else call
            if line.title:
                self.session.title_at = lines.position
        return calls.values()

    def snapshots(self) -> Iterable[StoredSession]:
        self.has_older = self.has_older or len(self.messages) > _KEPT
        for message in self.messages[:-_KEPT]:
            message.add_to(self.older)
        del self.messages[:-_KEPT]
        sizes = self.session.sizes = self.older.copy()
        for message in self.messages:
            message.add_to(sizes)
        for snapshot in super().snapshots():
            if self.subagent:
                name = f"{snapshot.id}/{self.subagent}"
                yield msgspec.structs.replace(snapshot, id=name, subagent_of=snapshot.id)
            else:
                yield snapshot

    def apply_fields(self, fields: _Fields) -> Iterable[_Message]:
        """Apply a `$set` line. Return the new messages if the line replaces all messages."""
        session = self.session
        self._name(fields.session_id)
        session.updated_at = parse_iso_time(fields.last_updated) or session.updated_at
        if fields.messages is None:
            return ()
        self._replace(fields.messages)
        return fields.messages

    def _apply(self, line: _Line) -> Iterable[_Message]:
        self._name(line.session_id)
        if line.rewind_to is not None:
            self._rewind_to(line.rewind_to)
        elif line.set_ is not None:
            return self.apply_fields(line.set_)
        elif line.id is not None:
            self._put(line)
            return (line,)
        return ()

    def _name(self, session: str | None) -> None:
        if session and not self.subagent:
            self.session.id = session

    def _put(self, message: _Message) -> None:
        name, reading = message.id or "", message.reading
        kept = self._keep(message, reading)
        start = max(0, len(self.messages) - _KEPT)
        for position in range(start, len(self.messages)):
            if self.messages[position].id == name:
                self.messages[position] = kept
                break
        else:
            self.messages.append(kept)
        self.first = self.first or name
        self._note(message)
        self._measure()

    def _keep(self, message: _Message, reading: CallSize | None) -> _Kept:
        sizes = self.session.sizes.new_message()
        message.add_parts(sizes)
        return _Kept(message.id or "", reading, sizes)

    def _note(self, message: _Message) -> None:
        session = self.session
        session.touch(parse_iso_time(message.timestamp))
        if message.type in ("user", "gemini"):
            session.active = not message.ends_turn
        if message.type == "gemini":
            # A resumed session continues in a new file, which has no replies at first.
            session.rank = 1

    def _measure(self) -> bool:
        readings = [one.reading for one in self.messages[-_KEPT:] if one.reading]
        if not readings and len(self.messages) > _KEPT:
            readings = [one.reading for one in self.messages if one.reading]
        track = ContextTrack()
        for reading in readings:
            track = track.call(reading)
        if readings:
            self.session.track = track
        return bool(readings)

    def _replace(self, messages: list[_Message]) -> None:
        """Replace all messages in the conversation.

        If the new messages include an earlier reply with token counts, the session was resumed.
        Otherwise, the conversation was compressed.
        """
        readings = {one.id: one.reading for one in self.messages}
        is_new = self.first is None
        is_same = bool(messages) and messages[0].id == self.first
        if is_same and not any(message.type == "gemini" for message in messages):
            return  # when a session is resumed, its first message is written before the rest
        self.messages, self.older = [], ContextSizes()
        for message in messages:
            reading = readings.get(message.id or "")
            # After a compression, earlier messages may be repeated with their token counts.
            if is_new or (is_same and reading):
                reading = message.reading or reading
            reading = reading if is_new or is_same else None
            self.messages.append(self._keep(message, reading))
        self.first = messages[0].id if messages else None
        for message in messages:
            self._note(message)
        if not self._measure() and not is_new:
            self.session.note(is_compacted=True)
            self.session.track = self.session.track.compaction()

    def _rewind_to(self, message: str) -> None:
        self.session.note(is_rewound=True)
        names = [one.id for one in self.messages]
        self.messages = self.messages[: names.index(message)] if message in names else []
        if not self._measure():
            if self.has_older:
                raise StartOverError
            self.session.track = self.session.track.rewind()

    def calls(self, messages: Iterable[_Message]) -> Iterator[CallFinished]:
        for message in messages:
            if message.type != "gemini" or message.tokens is None:
                continue
            yield from self.session.call(
                parse_iso_time(message.timestamp),
                message.tokens.usage,
                message.id or f"{self.session.id}/{message.timestamp}",
                message.model,
                "google",
                category="subagent" if self.subagent else "main",
            )


def _events_of(store: Store, data: bytes) -> StoreRead:
    log, fields = _Log.of(store), decode_document(data, _Fields)
    calls = [*log.calls(log.apply_fields(fields))]
    log.session.title_at = "summary" if fields.summary else None
    return StoreRead(calls, [*log.snapshots()])


def _folder_of_project(project: str) -> str:
    return _folder_in_list(project) or f"sha256:{os.path.basename(project)}"


def _folder_in_list(project: str) -> str | None:
    path = os.path.join(os.path.dirname(project), os.pardir, "projects.json")
    return (_read_list(path) or {}).get(os.path.basename(project))


class _Projects(Record):
    projects: dict[str, str] = msgspec.field(default_factory=dict)


@cached_until_changed
def _read_list(path: str) -> dict[str, str]:
    """Map each project's name, and the hash of its folder, to the folder. Raises OSError."""
    projects = decode_file(path, _Projects).projects
    hashed = {folder_digest("sha256", folder): folder for folder in projects}
    return hashed | {name: folder for folder, name in projects.items()}
