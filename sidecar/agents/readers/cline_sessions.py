"""Cline since 4.0: `~/.cline/data/sessions/<id>/`, shared by the CLI and all editors.

The file is rewritten with each message. Each reply has the numbers of its call; the input
includes cached tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.events import CallFinished, Store, StoreRead, StoreReader
from sidecar.agents.fields import (
    CamelRecord,
    Number,
    Record,
    decode_document,
    provider_of,
    time_from_ms,
    token_count,
    try_decode_file,
)
from sidecar.agents.homes import cline_sessions_folder
from sidecar.agents.listing import list_folder, store_from_path
from sidecar.agents.readers.cline import Tasks, reported_usd
from sidecar.agents.readers.two_stores import TwoStores
from sidecar.agents.stores import SessionState, StoreContents, read_document
from sidecar.agents.values import CallSize
from sidecar.messages.usage import Usage, usage_from_prompt

if TYPE_CHECKING:
    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots

AGENT = "cline"
_MESSAGES = ".messages.json"
_LEAD = "lead"


class _Metrics(CamelRecord):
    input_tokens: Number = None
    output_tokens: Number = None
    cache_read_tokens: Number = None
    cache_write_tokens: Number = None
    cost: Number = None

    @property
    def usage(self) -> Usage:
        read, written = token_count(self.cache_read_tokens), token_count(self.cache_write_tokens)
        return usage_from_prompt(
            token_count(self.input_tokens), read, written, 0, token_count(self.output_tokens), 0
        )


class _Model(Record):
    id: str | None = None
    provider: str | None = None


class _Reply(CamelRecord):
    id: str | None = None
    ts: Number = None
    model_info: _Model | None = None
    metrics: _Metrics | None = None

    @property
    def usage(self) -> Usage | None:
        """Tokens of the reply's call, or None for other messages."""
        usage = self.metrics.usage if self.metrics else None
        return usage if usage and usage.prompt_tokens + usage.output_tokens else None


class _File(CamelRecord):
    agent: str | None = None
    session_id: str | None = None
    messages: list[_Reply] | None = None


class _Manifest(Record):
    cwd: str | None = None
    workspace_root: str | None = None
    model: str | None = None
    provider: str | None = None
    status: str | None = None
    ended_at: str | None = None

    @property
    def folder(self) -> str:
        return self.cwd or self.workspace_root or ""


class ClineSessions(StoreReader):
    """See `sidecar.agents.events.StoreReader`."""

    agent = AGENT

    def folders(self, places: Places) -> tuple[str, ...]:
        return (str(cline_sessions_folder(places)),)

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:  # noqa: ARG002
        for session in list_folder(cline_sessions_folder(places)):
            for entry in list_folder(session.path) if session.is_dir() else ():
                if entry.name.endswith(_MESSAGES) and (store := _store_at(Path(entry.path))):
                    yield store

    def store_at(self, places: Places, path: str) -> Store | None:
        changed = Path(path)
        if str(changed.parent.parent) != str(cline_sessions_folder(places)):
            return None
        if changed.name == f"{changed.parent.name}.json":
            return _store_at(changed.with_suffix(_MESSAGES))
        return _store_at(changed) if changed.name.endswith(_MESSAGES) else None

    def read(self, store: Store, state: bytes = b"") -> StoreRead:  # noqa: ARG002
        return read_document(store, partial(_parse_session, store))


READER = TwoStores(
    ClineSessions(),
    Tasks(AGENT, "saoudrizwan.claude-dev"),
    lambda path: not path.endswith(_MESSAGES),
)


def _parse_session(store: Store, data: bytes) -> StoreContents:
    """Return the calls of a conversation, and its session unless it is a sub-agent's."""
    document, manifest = decode_document(data, _File), _read_manifest(store.path)
    session = SessionState(document.session_id or Path(store.path).parent.name)
    session.work_in(manifest.folder)
    session.ended = manifest.ended_at is not None and manifest.status != "running"
    is_lead = document.agent in (None, _LEAD)
    session.model, provider = manifest.model, manifest.provider
    calls = []
    for reply in document.messages or ():
        usage, at = reply.usage, time_from_ms(reply.ts)
        session.at = at or session.at
        if usage is None:
            continue
        if reply.model_info is not None:
            session.model = reply.model_info.id or session.model
            provider = reply.model_info.provider or provider
        session.track = session.track.call(CallSize.of(usage, session.model))
        if at is None:
            continue
        calls.append(
            CallFinished(
                at=at,
                agent=AGENT,
                session=session.id,
                model=session.model or "unknown",
                provider=provider or provider_of(session.model or ""),
                usage=usage,
                request=reply.id or f"{session.id}/{int(reply.ts or 0)}",
                workspace=session.folder or "",
                category="main" if is_lead else "subagent",
                cost_usd=reported_usd(reply.metrics.cost if reply.metrics else None),
            )
        )
    sessions = [session.snapshot()] if is_lead and store.live else []
    return StoreContents(calls, sessions)


def _store_at(messages: Path) -> Store | None:
    session = messages.parent.name
    store = store_from_path(AGENT, messages, live=messages.name.startswith(f"{session}."))
    manifest = store_from_path(AGENT, messages.with_name(f"{session}.json"))
    if store is None or manifest is None or not store.live:
        return store
    newest = max(store.mtime_ns, manifest.mtime_ns)
    return msgspec.structs.replace(store, size=store.size + manifest.size, mtime_ns=newest)


def _read_manifest(path: str) -> _Manifest:
    folder = Path(path).parent
    return try_decode_file(folder / f"{folder.name}.json", _Manifest) or _Manifest()
