"""Gemini CLI: `tmp/<project>/chats/session-*.jsonl` (older: `.json`), sub-agents in folders below.

Lines are messages, which come again with the same id whenever they change; `$set` replaces fields
of the session, among them all messages; `$rewindTo` takes back a message and all after it. What was
taken back was billed all the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.agents.fields import CamelRecord, Record, TokenCount, when, whole, whole_file
from sidecar.agents.folding import Folded, fold_lines, fold_whole
from sidecar.agents.homes import homes
from sidecar.agents.line_files import Decoded
from sidecar.agents.listing import below, entries, stat_of
from sidecar.agents.occupancy import Track, occupancy
from sidecar.agents.tail import chunks, first_lines, lines_backwards, lines_with, open_quietly
from sidecar.agents.values import Batch, Call, Found, Glance, Mark, Reading, stored
from sidecar.messages.usage import Usage, included

if TYPE_CHECKING:
    from sidecar.agents.places import Places
    from sidecar.agents.reader import Look
    from sidecar.agents.roots import Roots

AGENT = "gemini-cli"
_SUFFIXES = (".jsonl", ".json")
_TAIL = 1 << 20
_HEAD = 64 << 10


class _Tokens(Record):
    input: TokenCount = None
    """All of the prompt, what was cached too."""
    output: TokenCount = None
    cached: TokenCount = None
    thoughts: TokenCount = None
    """Beside `output`."""
    tool: TokenCount = None
    """Tool-use prompts, beside `input`."""

    @property
    def usage(self) -> Usage:
        """The same in parts that do not overlap."""
        thoughts = self.thoughts or 0
        prompt = (self.input or 0) + (self.tool or 0)
        return included(prompt, self.cached or 0, 0, 0, (self.output or 0) + thoughts, thoughts)


class _Message(Record):
    id: str | None = None
    type: str | None = None
    timestamp: str | None = None
    model: str | None = None
    tokens: _Tokens | None = None

    @property
    def reading(self) -> Reading | None:
        """What its call sent and got; None for all but a model's reply with numbers."""
        if self.type != "gemini" or self.tokens is None:
            return None
        return Reading.of(self.tokens.usage, self.model)


class _Fields(CamelRecord):
    """Fields of a session."""

    session_id: str | None = None
    last_updated: str | None = None
    summary: str | None = None
    kind: str | None = None
    messages: list[_Message] | None = None


class _Line(_Message):
    """A line: a message, fields of the session, a change of them, or a rewind."""

    set_: _Fields | None = msgspec.field(default=None, name="$set")
    rewind_to: str | None = msgspec.field(default=None, name="$rewindTo")
    session_id: str | None = msgspec.field(default=None, name="sessionId")
    summary: str | None = None


class _State(msgspec.Struct, frozen=True):
    """Of a file: whose calls they are."""

    session: str
    workspace: str
    subagent: bool


_line = typed.decoder(_Line)


class GeminiCli:
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT

    def folders(self, places: Places) -> tuple[str, ...]:
        return tuple(str(home / "tmp") for home in homes(places, AGENT))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:
        for folder in self.folders(places):
            for project in entries(folder):
                if roots is None or _root(project.path, roots) is not None:
                    yield from _of_project(project.path)

    def store_at(self, places: Places, path: str) -> Found | None:
        for folder in self.folders(places):
            parts = path.removeprefix(folder + os.sep).split(os.sep)
            if path.startswith(folder + os.sep) and parts[1:2] == ["chats"]:
                live = len(parts) == 3
                return stat_of(AGENT, path, live=live) if path.endswith(_SUFFIXES) else None
        return None

    def glance(self, look: Look) -> Glance:
        found = look.found
        root = _root(str(Path(found.path).parents[1]), look.roots)
        if root is None:
            return Glance(found)
        log = _log_of(found.path)
        model = log.track.newest.model if log.track.newest else None
        session = stored(
            found,
            log.id or Path(found.path).stem,
            root,
            when(log.at),
            occupancy(log.track),
            model=model,
            title=log.title,
            active=log.active,
            rank=log.rank,
        )
        return Glance(found, (session,), log.skipped)

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        path = Path(found.path)
        project, parent = path.parents[1], Path(found.path).stem
        if not found.live:
            project, parent = path.parents[2], path.parent.name
        state = _State(parent, _workspace(str(project)) or "", subagent=not found.live)
        if found.path.endswith(".json"):
            return fold_whole(found, mark, state, _fold_whole)
        return fold_lines(found, mark, state, partial(_fold, found.path))


READER = GeminiCli()


class _Log:
    """A session as its lines leave it, taken in their order."""

    def __init__(self) -> None:
        self.id: str | None = None
        self.title: str | None = None
        self.at: str | None = None
        self.active: bool | None = None
        self.skipped = 0
        self.rank = 0
        """1 where there was a reply: a session that is resumed begins with a file without any."""
        self._messages: dict[str, Reading | None] = {}
        self._lost: str | None = None

    @property
    def track(self) -> Track:
        """Of the messages that are left; of none, why the size is not known."""
        track = Track()
        for reading in self._messages.values():
            track = track if reading is None else track.call(reading)
        if track.newest is None and self._lost is not None:
            return track.rewind() if self._lost == "rewind" else track.compaction()
        return track

    def take(self, one: _Line) -> None:
        self.id, self.title = one.session_id or self.id, one.summary or self.title
        if one.rewind_to is not None:
            self._rewind(one.rewind_to)
        elif one.set_ is not None:
            self.change(one.set_)
        elif one.id is not None:
            self._put(one)

    def change(self, fields: _Fields) -> None:
        """Take fields of the session; with messages, they are all that there is now."""
        self.id, self.title = fields.session_id or self.id, fields.summary or self.title
        self.at = fields.last_updated or self.at
        if fields.messages is None:
            return
        first = next(iter(self._messages), None)
        replaced = first is not None and (not fields.messages or fields.messages[0].id != first)
        self._messages.clear()
        for message in fields.messages:
            self._put(message, counts=not replaced)
        self._lost = "compaction" if replaced else None

    def _put(self, message: _Message, *, counts: bool = True) -> None:
        """A message; a size from before a compaction is not the size after it."""
        self.at = message.timestamp or self.at
        self.rank = 1 if message.type == "gemini" else self.rank
        self.active = message.type == "user" if message.type in ("user", "gemini") else self.active
        self._messages[message.id or ""] = message.reading if counts else None

    def _rewind(self, message: str) -> None:
        kept = list(self._messages)
        kept = kept[: kept.index(message)] if message in self._messages else []
        self._messages = {one: self._messages[one] for one in kept}
        self._lost = "rewind"


def _log_of(path: str) -> _Log:
    """A session from the end of its file where that is enough, else from the whole of it."""
    log = _Log()
    with open_quietly(path) as file:
        if path.endswith(".json"):
            log.change(whole(file.read(), _Fields))
            return log
        newest = _plain_end(lines_backwards(file, most=_TAIL))
        if newest is None:
            file.seek(0)
            newest = [line for data, _ in chunks(file) for line in data.split(b"\n")]
        else:
            newest = [*islice(first_lines(path, _HEAD), 1), *newest]
    lines = Decoded(filter(bytes.strip, newest), _line)
    for one in lines:
        log.take(one)
    log.skipped = lines.skipped
    return log


def _plain_end(backwards: Iterable[bytes]) -> list[bytes] | None:
    """The lines from the last reply with numbers on; None where older ones may matter."""
    taken: list[bytes] = []
    for line in backwards:
        if b'"$rewindTo"' in line or (b'"$set"' in line and b'"messages"' in line):
            return None
        taken.append(line)
        if b'"tokens"' in line:
            try:
                reading = _line(line).reading
            except msgspec.DecodeError:
                continue
            if reading is not None and reading.prompt:
                return taken[::-1]
    return None


def _fold(path: str, state: _State, data: bytes) -> Folded[_State]:
    """The calls in some lines of a log: of a message that comes again the last one."""
    if not state.subagent and state.session == Path(path).stem:
        named = Decoded(islice(lines_with(data, b'"sessionId"'), 1), _line)
        session = next((one.session_id for one in named), None)
        state = msgspec.structs.replace(state, session=session or state.session)
    calls: dict[str, Call] = {}
    lines = Decoded(lines_with(data, b'"tokens"'), _line)
    for one in lines:
        messages = one.set_.messages or () if one.set_ else (one,)
        calls |= {call.request: call for call in _calls(messages, state)}
    return Folded(state, tuple(calls.values()), lines.skipped)


def _fold_whole(state: _State, data: bytes) -> Folded[_State]:
    fields = whole(data, _Fields)
    if not state.subagent:
        state = msgspec.structs.replace(state, session=fields.session_id or state.session)
    return Folded(state, tuple(_calls(fields.messages or (), state)))


def _calls(messages: Iterable[_Message], state: _State) -> Iterator[Call]:
    for message in messages:
        at = when(message.timestamp)
        if message.type != "gemini" or message.tokens is None or at is None:
            continue
        usage = message.tokens.usage
        if usage.prompt_tokens + usage.output_tokens:
            yield Call(
                at=at,
                agent=AGENT,
                session=state.session,
                model=message.model or "unknown",
                provider="google",
                usage=usage,
                request=message.id or f"{state.session}/{message.timestamp}",
                workspace=state.workspace,
                category="subagent" if state.subagent else "main",
            )


def _of_project(folder: str) -> Iterator[Found]:
    chats = os.path.join(folder, "chats")
    for found in below(AGENT, chats, *_SUFFIXES):
        live = os.path.dirname(found.path) == chats
        yield found if live else msgspec.structs.replace(found, live=False)


def _root(project: str, roots: Roots) -> str | None:
    """The folder that a project's folder stands for, where the roots hold it."""
    known = _workspace(project)
    if known is not None:
        return known if roots.hold(known) else None
    name = os.path.basename(project)
    return next((path for path in roots.paths if _hash(path) == name), None)


def _workspace(project: str) -> str | None:
    """The folder that a project's folder stands for, by Gemini CLI's own list of projects."""
    path = os.path.join(os.path.dirname(project), os.pardir, "projects.json")
    try:
        listed = _listed(path, os.stat(path).st_mtime_ns)
    except OSError:
        return None
    return listed.get(os.path.basename(project))


class _Projects(Record):
    projects: dict[str, str] = msgspec.field(default_factory=dict)


@lru_cache(maxsize=8)
def _listed(path: str, _mtime_ns: int) -> dict[str, str]:
    """Folders by the names, and by the older hashes, of their projects. Raises OSError."""
    projects = whole_file(path, _Projects).projects
    hashed = {_hash(folder): folder for folder in projects}
    return hashed | {name: folder for folder, name in projects.items()}


def _hash(folder: str) -> str:
    return sha256(folder.encode("utf-8", "surrogateescape")).hexdigest()
