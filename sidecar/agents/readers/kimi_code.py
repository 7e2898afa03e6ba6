"""Reads Kimi Code's `sessions/<workspace>/<session>/agents/<agent>/wire.jsonl`.

The agent `main` is the main conversation. The session's working directory and title are in its
`state.json`. Each call adds a `usage.record` line with the user's alias for the model. The
preceding `llm.request` line contains the actual model name. Forks copy all lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sidecar import typed
from sidecar.agents.context_sizes import ContextSizes
from sidecar.agents.file_reading import (
    CamelRecord,
    Record,
    TokenCount,
    reported_usage,
    time_from_ms,
    try_decode_file,
    try_decode_settings,
)
from sidecar.agents.folders import Places
from sidecar.agents.session_events import CallFinished, CallSize, Store, StoredSession
from sidecar.agents.stores import (
    LineReader,
    Lines,
    SessionLines,
    SessionState,
    store_from_path,
    with_size_of,
)
from sidecar.messages.vendor_usage import Usage
from sidecar.models.catalogue import provider_of

_MOST_PROMPTS = 1_000
_WIRE, _STATE, _MAIN = "wire.jsonl", "state.json", "main"


class _Tokens(CamelRecord):
    input_other: TokenCount = None
    output: TokenCount = None
    input_cache_read: TokenCount = None
    input_cache_creation: TokenCount = None

    @property
    def usage(self) -> Usage:
        cached = self.input_cache_read, self.input_cache_creation
        return reported_usage(self.input_other, self.output, *cached, includes_cached=False)


class _Origin(Record):
    kind: str | None = None


class _Message(Record):
    content: msgspec.Raw = msgspec.Raw(b"")
    origin: _Origin | None = None

    @property
    def is_users(self) -> bool:
        return self.origin is None or self.origin.kind in (None, "user")


class _LoopEvent(CamelRecord):
    type: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    part: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = msgspec.Raw(b"")
    result: msgspec.Raw = msgspec.Raw(b"")


class _Line(CamelRecord):
    type: str | None = None
    time: float | None = None
    model: str | None = None
    provider: str | None = None
    usage: _Tokens | None = None
    usage_scope: str | None = None
    tokens: TokenCount = None
    context_summary: msgspec.Raw = msgspec.Raw(b"")
    kept_user_message_count: int = 0
    message: _Message | None = None
    event: _LoopEvent | None = None


class _Session(CamelRecord):
    cwd: str | None = None
    title: str | None = None
    title_kind: str | None = None
    """`replaceable` means that the title was generated from a prompt."""
    archived: bool | None = None
    created_at: float | None = None
    """When the session was created. A fork also contains its parent's earlier lines."""
    forked_from: str | None = None

    @property
    def own_title(self) -> str | None:
        return self.title if self.title_kind != "replaceable" else None


class _Alias(Record):
    model: str | None = None
    max_context_size: TokenCount = None


class _Config(Record):
    models: dict[str, _Alias] | None = None


_line = typed.decoder(_Line)


class KimiCode(LineReader):
    inner = ("sessions",)
    pattern = r".*wire\.jsonl"

    def store_at(self, places: Places, path: str) -> Store | None:
        if os.path.basename(path) == _STATE:
            path = os.path.join(os.path.dirname(path), "agents", _MAIN, _WIRE)
        return super().store_at(places, path)

    def make_store(self, path: str) -> Store | None:
        """Return a file's store. The size of a main conversation includes `state.json`."""
        is_main = os.path.basename(os.path.dirname(path)) == _MAIN
        store = store_from_path(self.agent, path, live=is_main)
        state = (
            store_from_path(self.agent, str(_session_folder(path) / _STATE)) if is_main else None
        )
        return with_size_of(store, state) if store and state else store

    def begin(self, store: Store) -> _Wire:
        session = SessionState(_session_folder(store.path).name)
        return _Wire(session, store.path, is_subagent=not store.live)

    def title(self, store: Store, title_at: str) -> str | None:  # noqa: ARG002
        return _read_session_info(store.path).own_title

    def window(self, places: Places, session: StoredSession) -> int | None:  # noqa: ARG002
        """Return the model's context window in tokens, if the user's settings define it.

        If they define several windows for the model, the smallest one is returned.
        """
        home = _session_folder(session.path).parents[2]
        config = try_decode_settings(home / "config.toml", _Config) or _Config()
        aliases = (config.models or {}).values()
        named = (one.max_context_size for one in aliases if one.model == session.model)
        return min(filter(None, named), default=None)


READER = KimiCode()


class _Wire(SessionLines):
    path: str
    is_subagent: bool
    provider: str | None = None
    prompts: list[int] = msgspec.field(default_factory=list)
    """The sizes of the latest user messages, some of which a compaction keeps."""

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        self._read_state_file()
        for line in lines.records(_line):
            yield from self._apply(line)

    def snapshots(self) -> Iterator[StoredSession]:
        self._read_state_file()
        snapshot = self.session.snapshot()
        if self.is_subagent:
            name = f"{snapshot.id}/{Path(self.path).parent.name}"
            snapshot = msgspec.structs.replace(snapshot, id=name, subagent_of=snapshot.id)
        yield snapshot

    def _read_state_file(self) -> None:
        kept, session = _read_session_info(self.path), self.session
        session.work_in(kept.cwd)
        session.began_at = time_from_ms(kept.created_at) or session.began_at
        session.parent, session.ended = kept.forked_from, bool(kept.archived)
        session.title_at = _STATE if kept.own_title else None

    def _apply(self, line: _Line) -> list[CallFinished]:
        session, kind = self.session, line.type or ""
        session.touch(time_from_ms(line.time))
        if kind == "llm.request":
            session.model, self.provider = line.model, line.provider
        elif kind == "turn.prompt":
            session.active = True
        elif kind == "turn.ended":
            session.active = False
        elif kind == "context.append_message" and line.message is not None:
            self._add_message(line.message)
        elif kind == "context.append_loop_event" and line.event is not None:
            self._add_event(line.event)
        elif kind == "context.apply_compaction":
            session.track = session.track.compaction()
            self._compact(line)
        elif kind in ("token_counting.rebased", "token_counting.truncated"):
            # Kimi Code estimates the size after a compaction or an undo.
            session.track = session.track.estimate(line.tokens or 0, session.model)
        elif kind == "usage.record" and line.usage is not None:
            return self._call(line, line.usage.usage)
        return []

    def _add_message(self, message: _Message) -> None:
        self.session.sizes.add("user" if message.is_users else "instructions", message.content)
        if message.is_users:
            self.prompts = [*self.prompts[1 - _MOST_PROMPTS :], memoryview(message.content).nbytes]

    def _add_event(self, event: _LoopEvent) -> None:
        sizes = self.session.sizes
        if event.type == "content.part":
            sizes.add("assistant", event.part)
        elif event.type == "tool.call":
            sizes.add("call", event.args, sizes.begin_call(event.tool_call_id, event.name))
        elif event.type == "tool.result":
            sizes.add("result", event.result, sizes.end_call(event.tool_call_id))

    def _compact(self, line: _Line) -> None:
        sizes, kept = self.session.sizes, max(0, line.kept_user_message_count)
        sizes.compact()
        sizes.add("summary", line.context_summary)
        self.prompts = self.prompts[max(0, len(self.prompts) - kept) :]
        sizes.merge(ContextSizes({("user", ""): sum(self.prompts)}))

    def _call(self, line: _Line, usage: Usage) -> list[CallFinished]:
        session, is_turn = self.session, line.usage_scope != "session"
        if is_turn and usage.prompt_tokens:
            session.track = session.track.call(CallSize.of(usage, session.model))
            session.sizes.add_prompt(usage.prompt_tokens)
        model = session.model or line.model or "unknown"
        return session.call(
            time_from_ms(line.time),
            usage,
            # Forks copy lines with their original timestamps.
            f"{line.time or 0:.0f}/{usage.prompt_tokens}/{usage.output_tokens}",
            model,
            provider_of(model) or self.provider,
            category="subagent" if self.is_subagent else "main" if is_turn else "summary",
        )


def _read_session_info(path: str) -> _Session:
    return try_decode_file(_session_folder(path) / _STATE, _Session) or _Session()


def _session_folder(path: str) -> Path:
    return Path(path).parents[2]
