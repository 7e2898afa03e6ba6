"""Reads Goose's `sessions/sessions.db`.

The token columns of a session describe its latest call, and the `accumulated_*` columns contain
its totals. Newer databases have a `usage_ledger` with one row per request, from which costs are
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar import typed
from sidecar.agents.contents import ContentEntry, ContentKind, Part, PromptSize, system_prompt_size
from sidecar.agents.databases import (
    DatabaseState,
    OneDatabase,
    column_text,
    column_tokens,
    read_only,
    rows,
)
from sidecar.agents.events import CallFinished, CallSize
from sidecar.agents.fields import (
    CamelRecord,
    Record,
    parse_iso_time,
    parse_usd,
    provider_of,
    time_from_ms,
)
from sidecar.agents.places import agent_folders
from sidecar.agents.stores import ContextTrack, SessionState
from sidecar.messages.usage import usage_from_parts, usage_from_prompt

if TYPE_CHECKING:
    import sqlite3
    from datetime import datetime
    from pathlib import Path

    from sidecar.agents.places import Places

AGENT = "goose"
_LEDGER = "usage_ledger"


class _Config(Record):
    model_name: str | None = None
    context_limit: int | None = None


def _parse_config(row: dict[str, Any]) -> _Config:
    try:
        return typed.decode(row.get("model_config_json") or "{}", _Config)
    except msgspec.DecodeError:
        return _Config()


def _time_of(value: object) -> datetime | None:
    if isinstance(value, int | float):
        return time_from_ms(value if value > 1e11 else value * 1000)
    return parse_iso_time(value if isinstance(value, str) else None)


class Goose(OneDatabase):
    agent, table = AGENT, "sessions"

    def paths(self, places: Places) -> tuple[Path, ...]:
        return tuple(home / "sessions" / "sessions.db" for home in agent_folders(places, AGENT))

    def title_of(self, row: dict[str, Any]) -> object:
        """Return the name of a session, unless Goose generated it from messages."""
        return (
            (row.get("name") or row.get("description")) if row.get("user_set_name") != 0 else None
        )

    def changes(
        self, _path: str, connection: sqlite3.Connection, state: DatabaseState
    ) -> Iterator[CallFinished]:
        since = state.at
        for row in rows(connection, self.table, "? IS NULL OR updated_at >= ?", since, since):
            state.advance(row.get("updated_at"))
            name = str(row["id"])
            state.sessions[name] = self._make_session(name, row)
            requests = list(rows(connection, _LEDGER, "session_id = ?", row["id"]))
            calls = (
                [_call_of_request(row, one) for one in requests]
                if requests
                else [_call_of_session(row)]
            )
            yield from filter(None, calls)

    def _make_session(self, name: str, row: dict[str, Any]) -> SessionState:
        config = _parse_config(row)
        prompt, output = (
            column_tokens(row.get("input_tokens")),
            column_tokens(row.get("output_tokens")),
        )
        total = column_tokens(row.get("total_tokens"))
        reading = CallSize(prompt or total, output if prompt else 0, config.model_name)
        session = SessionState(
            name,
            began=_time_of(row.get("created_at")),
            at=_time_of(row.get("updated_at")),
            model=config.model_name,
            track=ContextTrack().call(reading),
            window=config.context_limit,
            title_at=name if self.title_of(row) else None,
        )
        session.work_in(column_text(row.get("working_dir")))
        return session

    def contents(self, path: str, session: str) -> Iterator[ContentEntry]:
        """Yield the parts of a session, with the sizes of its prompts.

        Without a ledger, the size of the system prompt is estimated from that of the context.
        """
        with read_only(path) as connection:
            requests = [*rows(connection, _LEDGER, "session_id = ? ORDER BY id", session)]
            calls = (_call_of_request({"id": session, "updated_at": 0}, one) for one in requests)
            sizes = iter([one.usage.prompt_tokens for one in calls if one])
            tools, entries, counted = dict[str, str](), list[ContentEntry](), 0
            for row in rows(connection, "messages", "session_id = ? ORDER BY id", session):
                kind: ContentKind = "assistant" if row.get("role") == "assistant" else "user"
                if kind == "assistant" and (size := next(sizes, None)) is not None:
                    entries.append(PromptSize(size, has_all_before=True))
                entries += _content_parts(str(row.get("content_json") or "[]"), kind, tools)
                counted = len(entries) if kind == "assistant" else counted
            totals = next(rows(connection, self.table, "id = ?", session), None)
        newest = self._make_session(session, totals).track.newest if totals else None
        if newest is not None and not requests:
            known = (one for one in entries[:counted] if isinstance(one, Part))
            yield system_prompt_size(newest.prompt + newest.output, known)
        yield from entries


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


_blocks = typed.decoder(list[_Block])


def _content_parts(content: str, kind: ContentKind, tools: dict[str, str]) -> Iterator[Part]:
    for block in _blocks(content.encode()):
        if block.type == "toolRequest":
            called = (block.tool_call and block.tool_call.value) or _Called()
            tools[block.id or ""] = called.name or ""
            yield Part("call", called.arguments, called.name or "")
        elif block.type == "toolResponse":
            yield Part("result", block.tool_result, tools.get(block.id or "", ""))
        elif block.type == "image":
            yield Part("attachment")
        else:
            yield Part(kind, block.text)
            yield Part(kind, block.thinking)


def _call_of_request(session: dict[str, Any], row: dict[str, Any]) -> CallFinished | None:
    at = _time_of(row.get("created_at") or row.get("timestamp") or session.get("updated_at"))
    prompt, output = column_tokens(row.get("input_tokens")), column_tokens(row.get("output_tokens"))
    read = column_tokens(row.get("cache_read_tokens") or row.get("cache_read_input_tokens"))
    write = column_tokens(row.get("cache_write_tokens") or row.get("cache_write_input_tokens"))
    if at is None or not prompt + read + write + output:
        return None
    model, amount = str(row.get("model") or "unknown"), row.get("cost")
    cost = parse_usd(amount) if isinstance(amount, int | float) else None
    # Costs from any other source are based on Goose's own price list.
    is_billed = row.get("cost_source") == "provider"
    form = usage_from_prompt if prompt >= read + write else usage_from_parts
    return CallFinished(
        at=at,
        session=str(session["id"]),
        model=model,
        provider=str(row.get("provider") or session.get("provider_name") or provider_of(model)),
        usage=form(prompt, read, write, 0, output, 0),
        request=f"{session['id']}/{row.get('id') or row.get('rowid') or at.isoformat()}",
        workspace=str(session.get("working_dir") or ""),
        category="summary" if row.get("compaction") or row.get("is_compaction") else "main",
        cost_usd=cost if is_billed else None,
        agent_cost_usd=None if is_billed else cost,
    )


def _call_of_session(row: dict[str, Any]) -> CallFinished | None:
    """Combine all calls of a session, because older databases contain only totals."""
    at = _time_of(row.get("updated_at"))
    prompt = column_tokens(row.get("accumulated_input_tokens"))
    output = column_tokens(row.get("accumulated_output_tokens"))
    if at is None or not prompt + output:
        return None
    model = _parse_config(row).model_name or "unknown"
    return CallFinished(
        at=at,
        session=str(row["id"]),
        model=model,
        provider=str(row.get("provider_name") or provider_of(model)),
        usage=usage_from_parts(prompt, 0, 0, 0, output, 0),
        request=str(row["id"]),
        workspace=str(row.get("working_dir") or ""),
    )
