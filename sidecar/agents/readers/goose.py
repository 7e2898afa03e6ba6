"""Reads Goose's `sessions/sessions.db`.

A session's token columns describe its latest call, and the `accumulated_*` columns contain its
totals. Newer databases have a `usage_ledger` with one row per request, which contains the costs.
A total from before the ledger becomes the session's first row. An imported session has the total
of the session that it is a copy of.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec

from sidecar import typed
from sidecar.agents.context_sizes import ContextSizes, PartKind
from sidecar.agents.databases import (
    DatabaseState,
    OneDatabase,
    column_text,
    read_only,
    rows,
)
from sidecar.agents.file_reading import (
    CamelRecord,
    Record,
    parse_time,
    parse_usd,
    reported_usage,
    token_count,
)
from sidecar.agents.session_events import CallFinished, CallSize
from sidecar.agents.stores import ContextTrack, SessionState
from sidecar.messages.vendor_usage import Usage

_LEDGER, _SUBAGENT = "usage_ledger", "sub_agent"
_TOTAL = "carried_forward"
"""The source of the cost in a row with the total of older requests."""
_NOTHING = reported_usage(0, 0)
_TOLERANCE = timedelta(seconds=5)
"""By how much a session's first message may be older than the session."""


class _Config(Record):
    model_name: str | None = None
    context_limit: int | None = None


def _parse_config(row: dict[str, Any]) -> _Config:
    try:
        return typed.decode_leniently(row.get("model_config_json") or "{}", _Config)
    except msgspec.DecodeError:
        return _Config()


class Goose(OneDatabase):
    files, table = ("sessions/sessions.db",), "sessions"

    def title_of(self, row: dict[str, Any]) -> object:
        """Return the name that the user gave a session. Goose derives other names from messages."""
        return (
            (row.get("name") or row.get("description")) if row.get("user_set_name") != 0 else None
        )

    def changes(
        self, _path: str, connection: sqlite3.Connection, state: DatabaseState
    ) -> Iterator[CallFinished]:
        since = state.at
        for row in rows(connection, self.table, "? IS NULL OR updated_at >= ?", since, since):
            state.advance(row.get("updated_at"))
            name, provider = str(row["id"]), column_text(row.get("provider_name"))
            session = self._make_session(name, row)
            requests = [*rows(connection, _LEDGER, "session_id = ? ORDER BY id", row["id"])]
            requests = requests or [_total_of(row)]
            if _is_total(requests[0]):
                if _is_imported(connection, row, requests[0]):
                    del requests[0]
                else:
                    requests[0]["id"] = None  # the total is one call, before and in the ledger
            calls = [one for each in requests for one in _call_of_request(session, provider, each)]
            state.sessions[name] = session
            if row.get("session_type") != _SUBAGENT:
                yield from calls
                continue
            parent = column_text(row.get("parent_session_id")) or name
            session.subagent_of = parent
            for call in calls:
                yield msgspec.structs.replace(call, session=parent, category="subagent")

    def _make_session(self, name: str, row: dict[str, Any]) -> SessionState:
        config = _parse_config(row)
        prompt, output, total = (
            token_count(row.get(f"{name}_tokens")) for name in ("input", "output", "total")
        )
        reading = CallSize(prompt or total, output if prompt else 0, config.model_name)
        session = SessionState(
            name,
            began_at=parse_time(row.get("created_at")),
            updated_at=parse_time(row.get("updated_at")),
            model=config.model_name,
            track=ContextTrack().call(reading),
            window=config.context_limit,
            title_at=name if self.title_of(row) else None,
        )
        session.work_in(column_text(row.get("working_dir")))
        return session

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:
        """Add a session's parts, with its prompt sizes.

        Without a ledger, the system prompt's size is estimated from the context size.
        """
        with read_only(path) as connection:
            requests = [*rows(connection, _LEDGER, "session_id = ? ORDER BY id", session)]
            if requests and _is_total(requests[0]):
                requests = []  # it is unknown which message has the first request's size
            usages = map(_usage_of_request, requests)
            prompts = iter([one.prompt_tokens for one in usages if one != _NOTHING])
            sizes.tokens, counted = None if requests else 0, 0
            for row in rows(connection, "messages", "session_id = ? ORDER BY id", session):
                is_reply = row.get("role") == "assistant"
                if is_reply and (size := next(prompts, None)) is not None:
                    sizes.add_prompt(size, has_all_before=True)
                for block in _blocks(str(row.get("content_json") or "[]").encode()):
                    block.add_to(sizes, "assistant" if is_reply else "user")
                counted = (sizes.tokens or 0) if is_reply else counted
            totals = next(rows(connection, self.table, "id = ?", session), None)
        newest = self._make_session(session, totals).track.newest if totals else None
        if newest is not None and not requests:
            sizes.set_system_prompt(newest.prompt + newest.output - counted)


READER = Goose()


class _Called(Record):
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"")


class _ToolCall(Record):
    value: _Called | None = None


class _Block(CamelRecord):
    type: str | None = None
    id: str | None = None
    text: msgspec.Raw = msgspec.Raw(b"")
    thinking: msgspec.Raw = msgspec.Raw(b"")
    tool_call: _ToolCall | None = None
    tool_result: msgspec.Raw = msgspec.Raw(b"")

    def add_to(self, sizes: ContextSizes, kind: PartKind) -> None:
        if self.type == "toolRequest":
            called = (self.tool_call and self.tool_call.value) or _Called()
            sizes.add("call", called.arguments, sizes.begin_call(self.id, called.name))
        elif self.type == "toolResponse":
            sizes.add("result", self.tool_result, sizes.end_call(self.id))
        elif self.type == "image":
            sizes.add_attachment()
        else:
            sizes.add(kind, self.text)
            sizes.add(kind, self.thinking)


_blocks = typed.decoder(list[_Block])


def _is_total(request: dict[str, Any]) -> bool:
    return request.get("cost_source") == _TOTAL


def _total_of(session: dict[str, Any]) -> dict[str, Any]:
    """Return the total of a session's requests, in the form of a row of the ledger."""
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost")
    return {name: session.get(f"accumulated_{name}") for name in names} | {"cost_source": _TOTAL}


def _is_imported(
    connection: sqlite3.Connection, session: dict[str, Any], total: dict[str, Any]
) -> bool:
    """Return whether a session's total is the one of the session that it is a copy of.

    Then its messages are older than the session. So are those of a fork, which starts without a
    total: outside the ledger, a total is the session's own as soon as it has newer messages.
    """
    order = "" if total.get("id") else " DESC"
    where = f"session_id = ? ORDER BY created_timestamp{order} LIMIT 1"
    message = next(rows(connection, "messages", where, session["id"]), {})
    at = parse_time(message.get("created_timestamp"))
    began = parse_time(session.get("created_at"))
    return at is not None and began is not None and at < began - _TOLERANCE


def _usage_of_request(row: dict[str, Any]) -> Usage:
    prompt, output = token_count(row.get("input_tokens")), row.get("output_tokens")
    read, written = (token_count(row.get(f"cache_{name}_tokens")) for name in ("read", "write"))
    # Goose's input should include cached tokens (`Usage` in crates/goose-providers). If a provider
    # reports them separately, Goose's parser for that provider adds them. However, if the input is
    # smaller than the number of cached tokens, the parser did not add them.
    includes_cached = prompt >= read + written
    return reported_usage(prompt, output, read, written, includes_cached=includes_cached)


def _call_of_request(
    session: SessionState, provider: str | None, row: dict[str, Any]
) -> list[CallFinished]:
    amount = row.get("cost")
    cost = parse_usd(amount) if isinstance(amount, int | float) else None
    # Costs from any other source are based on Goose's own price list.
    is_billed = row.get("cost_source") == "provider_reported"
    return session.call(
        parse_time(row.get("created_timestamp")) or session.updated_at,
        _usage_of_request(row),
        f"{session.id}/{row['id']}" if row.get("id") else session.id,
        column_text(row.get("model")) or session.model,
        provider,
        category="summary" if row.get("is_compaction") else "main",
        reported_cost=cost if is_billed else None,
        agent_cost=None if is_billed else cost,
    )
