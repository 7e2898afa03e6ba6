"""Reads Mistral Vibe's sessions.

Since version 3, each session has a folder `logs/session/unified/<session>/` with journals,
generations and `meta.json`. In a journal, each `core_input` line that reports a reply is a call.
Vibe deletes a journal once two newer generations are saved. A generation's total usage includes
the calls from deleted journals.

Older versions store `logs/session/<session>/meta.json` with the context size and totals.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from sidecar import typed
from sidecar.agents.file_reading import (
    CamelRecord,
    Number,
    Record,
    TokenCount,
    chunks,
    decode_document,
    open_quietly,
    parse_iso_time,
    reported_usage,
    time_from_ms,
    token_count,
    try_decode_file,
    try_decode_settings,
)
from sidecar.agents.folders import Places, Roots, agent_folders
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
    FileStores,
    Lines,
    SessionState,
    TwoStores,
    list_folder,
    read_store,
    store_from_path,
    with_size_of,
)
from sidecar.messages.vendor_usage import Usage


class _Environment(Record):
    working_directory: str | None = None


class _ModelName(Record):
    active_model: str | None = None
    """The user's alias for the model."""
    model_name: str | None = None


class _Description(Record):
    start_time: str | None = None
    end_time: str | None = None
    environment: _Environment | None = None
    config: _ModelName | None = None

    @property
    def folder(self) -> str:
        return (self.environment.working_directory if self.environment else None) or ""


class _StatsNumbers(Record):
    session_prompt_tokens: Number = None
    session_completion_tokens: Number = None
    context_tokens: Number = None


class _StatsMeta(_Description):
    session_id: str | None = None
    stats: _StatsNumbers | None = None

    @property
    def model(self) -> str | None:
        return self.config.active_model if self.config else None


class VibeStats(DocumentReader):
    """Reads Vibe's sessions before version 3."""

    inner = ("logs/session",)
    pattern = r"[^/]+/meta\.json"

    def parse(self, store: Store, data: bytes) -> StoreRead:
        """Parse a session. All of its calls are combined into one."""
        meta = decode_document(data, _StatsMeta)
        stats = meta.stats or _StatsNumbers()
        session = SessionState(meta.session_id or Path(store.path).parent.name)
        session.work_in(meta.folder)
        session.updated_at, session.model = parse_iso_time(meta.end_time), meta.model
        size = CallSize(token_count(stats.context_tokens), 0, meta.model)
        session.track = session.track.call(size)
        calls = session.call(
            parse_iso_time(meta.start_time or meta.end_time),
            reported_usage(stats.session_prompt_tokens, stats.session_completion_tokens),
            session.id,
            meta.model,
        )
        return StoreRead(calls, [session.snapshot()])


_UNIFIED, _META = "unified", "meta.json"
_CURRENT = "CURRENT"
"""A file in every session's folder, including sub-agents' folders, which have no `meta.json`."""


class _Tokens(Record):
    input_tokens: TokenCount = None
    cached_input_tokens: TokenCount = None
    output_tokens: TokenCount = None


class _CamelTokens(CamelRecord):
    input_tokens: TokenCount = None
    cached_input_tokens: TokenCount = None
    output_tokens: TokenCount = None


class _Result(Record):
    usage: _Tokens | None = None


class _Command(Record):
    type: str | None = None
    action_id: str | None = None
    result: _Result | None = None


class _Determinism(Record):
    time_unix_ms: float | None = None


class _Input(Record):
    command: _Command | None = None
    determinism: _Determinism | None = None


class _Shape(Record):
    turn: str | None = None
    observations: list[str] | None = None


class _Payload(Record):
    input: _Input | None = None
    transition_shape: _Shape | None = None


class _Line(Record):
    type: str | None = None
    sequence: int | None = None
    payload: _Payload | None = None


class _PublicSession(CamelRecord):
    root_session_id: str | None = None
    """The id of the main conversation. For a sub-agent, it differs from the session's own id."""
    context_usage: _CamelTokens | None = None
    token_usage: _CamelTokens | None = None
    updated_at: float | None = None


class _Snapshot(Record):
    session: _PublicSession | None = None


class _Projection(Record):
    snapshot_sequence: int = 0
    snapshot: _Snapshot | None = None


class _Meta(_Description):
    parent_session_id: str | None = None
    git_branch: str | None = None
    title: str | None = None
    title_source: str | None = None
    """`auto` means that the title was generated from a prompt."""
    archived_at: str | None = None

    @property
    def own_title(self) -> str | None:
        return self.title if self.title_source != "auto" else None

    @property
    def model(self) -> str | None:
        return self.config.model_name if self.config else None


class _Lease(Record):
    """What the process that runs a session writes while it does."""

    process_id: int | None = None


class _Model(Record):
    alias: str | None = None
    name: str | None = None
    max_context_length: TokenCount = None


class _Settings(Record):
    models: list[_Model] | None = None


_line = typed.decoder(_Line)


class VibeSessions(FileStores):
    """Reads the sessions of Vibe 3 and later. Each store is a session's folder."""

    inner = (f"logs/session/{_UNIFIED}",)
    pattern = rf"[^/]+/({_META}|{_CURRENT})"

    def named_folders(self, places: Places) -> tuple[Path, ...]:
        return tuple(folder / _UNIFIED for folder in super().named_folders(places))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        return iter({store.path: store for store in super().find(places, roots)}.values())

    def store_at(self, places: Places, path: str) -> Store | None:
        for folder in self.searched_folders(places):
            if path.startswith(folder + os.sep):
                name = path[len(folder) + 1 :].partition(os.sep)[0]
                return self.make_store(os.path.join(folder, name, _META))
        return None

    def make_store(self, path: str) -> Store | None:
        """Return a session's store.

        Its size and modification time include those of the journals.
        """
        folder = os.path.dirname(path)
        found = store_from_path(self.agent, os.path.join(folder, _META))
        found = found or store_from_path(self.agent, os.path.join(folder, _CURRENT), live=False)
        journal = os.path.join(folder, "journal")
        journals = (store_from_path(self.agent, entry.path) for entry in list_folder(journal))
        if found is None:
            return None
        return msgspec.structs.replace(with_size_of(found, *filter(None, journals)), inode=0)

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        folder = Path(store.path).parent
        new = partial(_Session, SessionState(folder.name))
        return read_store(store, state, new, partial(_Session.read, folder=folder))

    def title(self, store: Store, title_at: str) -> str | None:  # noqa: ARG002
        meta = try_decode_file(store.path, _Meta)
        return meta.own_title if meta else None

    def window(self, places: Places, session: StoredSession) -> int | None:
        homes = agent_folders(places, self.agent)
        files = [try_decode_settings(home / "config.toml", _Settings) for home in homes]
        models = [one for settings in files if settings for one in settings.models or ()]
        meta = try_decode_file(session.path, _Meta) or _Meta()
        alias = (meta.config or _ModelName()).active_model
        named = (one for one in models if alias in (one.alias, one.name))
        return next((one.max_context_length for one in named), None)

    def made_call(self, path: str, session: str, call: McpToolCall) -> bool:
        active = Path(path).parents[2] / "active"
        lease = try_decode_file(active / f"{session}.lock.json", _Lease)
        return lease is not None and lease.process_id == call.process

    def compacts_at(self, window: int, model: str) -> int:  # noqa: ARG002
        least, most = max(min(50_000, window // 2), 10_000), window - min(24_000, window // 4)
        return max(least, min(256_000, window - 60_000, most))


READER = TwoStores(
    VibeSessions(), VibeStats(), lambda path: Path(path).parent.parent.name != _UNIFIED
)


class _Session(msgspec.Struct):
    session: SessionState
    offsets: dict[str, int] = {}
    """The number of bytes already read from each journal."""
    sequence: int = 0
    """The sequence number of the last journal line or generation that was read."""
    billed: tuple[int, int, int] = (0, 0, 0)
    """The input, cached input and output tokens of all recorded calls."""

    def read(self, folder: Path) -> StoreRead:
        meta = _read_meta(folder)
        calls = [*self._missed_calls(folder, meta)]
        skipped, before, self.offsets = 0, self.offsets, {}
        for name in sorted(entry.name for entry in list_folder(folder / "journal")):
            if not name.endswith(".jsonl"):
                continue
            path, offset = str(folder / "journal" / name), before.get(name, 0)
            with open_quietly(path) as file:
                file.seek(offset)
                for data, passed in chunks(file):
                    lines = Lines(path, data, offset)
                    for line in lines.records(_line):
                        calls += self._apply(line, meta)
                    offset, skipped = offset + (passed or len(data)), skipped + lines.skipped
            self.offsets[name] = offset
        self._describe(meta)
        return StoreRead(calls, [self.session.snapshot()], skipped)

    def _describe(self, meta: _Meta) -> None:
        session = self.session
        session.work_in(meta.folder)
        session.branch = meta.git_branch
        session.began_at = parse_iso_time(meta.start_time) or session.began_at
        session.updated_at = session.updated_at or parse_iso_time(meta.end_time)
        session.model = meta.model
        session.title_at = _META if meta.own_title else None
        session.ended = meta.archived_at is not None
        session.subagent_of = meta.parent_session_id

    def _missed_calls(self, folder: Path, meta: _Meta) -> Iterator[CallFinished]:
        saved = _oldest_generation(folder)
        public = saved.snapshot.session if saved and saved.snapshot else None
        if saved is None or public is None or saved.snapshot_sequence <= self.sequence:
            return
        total, session = _split_tokens(public.token_usage), self.session
        prompt, cached, output = (max(0, a - b) for a, b in zip(total, self.billed, strict=True))
        self.sequence, self.billed = saved.snapshot_sequence, total
        session.updated_at = time_from_ms(public.updated_at)
        size = _split_tokens(public.context_usage)
        session.track = session.track.call(CallSize(size[0], size[2], meta.model))
        usage = reported_usage(prompt, output, cached)
        for call in self._call(meta, usage, f"{session.id}/{saved.snapshot_sequence}"):
            yield msgspec.structs.replace(call, is_unread_past=True)

    def _apply(self, line: _Line, meta: _Meta) -> Iterator[CallFinished]:
        payload, sequence = line.payload, line.sequence or 0
        if line.type != "core_input" or payload is None or sequence <= self.sequence:
            return
        given, shape = payload.input or _Input(), payload.transition_shape or _Shape()
        session, self.sequence = self.session, sequence
        determinism = given.determinism or _Determinism()
        session.touch(time_from_ms(determinism.time_unix_ms))
        session.active = shape.turn == "running"
        command = given.command or _Command()
        parts = _split_tokens(command.result.usage if command.result else None)
        if command.type != "completion_succeeded" or not any(parts):
            return
        prompt, cached, output = parts
        done = self.billed
        self.billed = done[0] + prompt, done[1] + cached, done[2] + output
        usage = reported_usage(prompt, output, cached)
        is_summary = "context_compacted" in (shape.observations or ())
        if is_summary:
            session.track = session.track.compaction()
        else:
            session.track = session.track.call(CallSize.of(usage, meta.model))
        for call in self._call(meta, usage, command.action_id or f"{session.id}/{sequence}"):
            is_main_summary = is_summary and call.category == "main"
            yield msgspec.structs.replace(call, category="summary") if is_main_summary else call

    def _call(self, meta: _Meta, usage: Usage, request: str) -> list[CallFinished]:
        session, parent = self.session, meta.parent_session_id
        return session.call(
            session.updated_at,
            usage,
            request,
            meta.model,
            session=parent or session.id,
            workspace=meta.folder,
            category="subagent" if parent else "main",
        )


def _split_tokens(tokens: _Tokens | _CamelTokens | None) -> tuple[int, int, int]:
    if tokens is None:
        return 0, 0, 0
    return tokens.input_tokens or 0, tokens.cached_input_tokens or 0, tokens.output_tokens or 0


def _oldest_generation(folder: Path) -> _Projection | None:
    names = (entry.name for entry in list_folder(folder / "generations"))
    # Until a generation is complete, its name is not a number.
    oldest = min(filter(str.isdigit, names), default="")
    return try_decode_file(folder / "generations" / oldest / "projection-state.json", _Projection)


def _read_meta(folder: Path) -> _Meta:
    """Return a session's metadata, or for a sub-agent its main session's, which is its parent.

    A fork has a parent, too, but metadata of its own.
    """
    if meta := try_decode_file(folder / _META, _Meta):
        return msgspec.structs.replace(meta, parent_session_id=None)
    saved = _oldest_generation(folder)
    public = saved.snapshot.session if saved and saved.snapshot else None
    root = public.root_session_id if public else None
    if root in (None, folder.name):  # the main session's `meta.json` does not exist yet
        raise OSError("not a complete session")
    meta = try_decode_file(folder.parent / root / _META, _Meta) or _Meta()
    return msgspec.structs.replace(meta, parent_session_id=root)
