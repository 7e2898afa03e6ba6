"""Cline before 4.0 and Roo Code: `tasks/<id>/ui_messages.json` in VS Code's global storage.

A message's text contains JSON with the call's numbers next to the prompt, which is not decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
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
from sidecar.agents.homes import editor_folders
from sidecar.agents.line_files import NamedFiles
from sidecar.agents.stores import SessionState, StoreContents, read_document
from sidecar.agents.values import CallSize
from sidecar.messages.usage import Usage, usage_from_parts, usage_from_prompt

if TYPE_CHECKING:
    from sidecar.agents.occupancy import ContextTrack
    from sidecar.agents.places import Places


class _Numbers(CamelRecord):
    tokens_in: Number = None
    tokens_out: Number = None
    cache_reads: Number = None
    cache_writes: Number = None
    cost: Number = None
    api_protocol: str | None = None

    @property
    def usage(self) -> Usage:
        """Return the call's tokens. Only OpenAI's format includes cached tokens in the input."""
        parts = (
            token_count(self.tokens_in),
            token_count(self.cache_reads),
            token_count(self.cache_writes),
        )
        form = usage_from_prompt if self.api_protocol == "openai" else usage_from_parts
        return form(*parts, 0, token_count(self.tokens_out), 0)


class _ModelInfo(CamelRecord):
    model_id: str | None = None
    provider_id: str | None = None


class _Condensed(CamelRecord):
    new_context_tokens: Number = None


class _Message(CamelRecord):
    ts: Number = None
    say: str | None = None
    partial: bool | None = None
    text: msgspec.Raw = msgspec.Raw(b'""')
    model_info: _ModelInfo | None = None
    context_condense: _Condensed | None = None

    @property
    def numbers(self) -> _Numbers | None:
        """The numbers of a finished call, or None for other messages."""
        if self.say != "api_req_started":
            return None
        with suppress(msgspec.DecodeError):
            found = _numbers(typed.decode(self.text, str))
            usage = found.usage
            return found if usage.prompt_tokens + usage.output_tokens else None
        return None


class _Used(Record):
    ts: Number = None
    model_id: str | None = None
    model_provider_id: str | None = None


class _Metadata(Record):
    model_usage: list[_Used] | None = None


class _Item(CamelRecord):
    id: str | None = None
    workspace: str | None = None
    cwd_on_task_initialization: str | None = None

    @property
    def folder(self) -> str:
        return self.workspace or self.cwd_on_task_initialization or ""


_numbers = typed.decoder(_Numbers)


class Tasks(NamedFiles, StoreReader):
    """See `sidecar.agents.events.StoreReader`."""

    agent = ""
    name = "ui_messages.json"

    def __init__(self, agent: str, extension: str, *, has_copies: bool = False) -> None:
        """Args:
        agent: The agent's name.
        extension: The extension's id.
        has_copies: Whether task folders contain a git repository. They are then polled.
        """
        self.agent = agent
        self._extension, self._has_copies = extension, has_copies

    def folders(self, places: Places) -> tuple[str, ...]:
        return () if self._has_copies else self.holders(places)

    def holders(self, places: Places) -> tuple[str, ...]:
        extension = Path("globalStorage") / self._extension / "tasks"
        return tuple(str(user / extension) for user in editor_folders(places, self.agent))

    def read(self, store: Store, state: bytes = b"") -> StoreRead:  # noqa: ARG002
        return read_document(store, partial(_parse_task, self.agent, Path(store.path)))


def _parse_task(agent: str, path: Path, data: bytes) -> StoreContents:
    messages, models = decode_document(data, list[_Message]), _read_models(path)
    session, calls = SessionState(path.parent.name), list[CallFinished]()
    session.work_in(_folder_of_task(path.parent))
    session.at = time_from_ms(messages[-1].ts if messages else None)
    for message in messages:
        if message.say == "condense_context" and not message.partial:
            session.track = _after_summary(session.track, message)
        numbers, at = message.numbers, time_from_ms(message.ts)
        if numbers is None:
            continue
        usage, (model, provider) = numbers.usage, _model_of_call(message, models)
        session.model = model
        session.track = session.track.call(CallSize.of(usage, model))
        if at is None:
            continue
        calls.append(
            CallFinished(
                at=at,
                agent=agent,
                session=session.id,
                model=model or "unknown",
                provider=provider,
                usage=usage,
                request=f"{session.id}/{int(message.ts or 0)}",
                workspace=session.folder or "",
                cost_usd=reported_usd(numbers.cost),
            )
        )
    return StoreContents(calls, [session.snapshot()])


def reported_usd(cost: Number) -> Decimal | None:
    """Return the cost that an agent reports, or None if it is missing or impossible."""
    return None if cost is None or cost < 0 else Decimal(repr(cost))


def _after_summary(track: ContextTrack, one: _Message) -> ContextTrack:
    size = token_count(one.context_condense.new_context_tokens if one.context_condense else None)
    return track.call(CallSize(size)) if size else track.compaction()


def _model_of_call(one: _Message, models: Sequence[_Used]) -> tuple[str | None, str]:
    info = one.model_info
    if info is not None and info.model_id:
        return info.model_id, info.provider_id or provider_of(info.model_id)
    used = [each for each in models if (each.ts or 0) <= (one.ts or 0)] or models[:1]
    name = used[-1].model_id if used else None
    return name, (used[-1].model_provider_id or provider_of(name or "")) if used else ""


def _read_models(path: Path) -> Sequence[_Used]:
    metadata = try_decode_file(path.with_name("task_metadata.json"), _Metadata)
    return (metadata.model_usage if metadata else None) or ()


def _folder_of_task(task: Path) -> str:
    if item := try_decode_file(task / "history_item.json", _Item):
        return item.folder
    items = try_decode_file(task.parents[1] / "state" / "taskHistory.json", list[_Item]) or ()
    return next((item.folder for item in items if item.id == task.name), "")
