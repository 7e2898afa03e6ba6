"""Reads Cline's sessions, and the tasks of its forks, such as Roo Code, in Cline's old format.

Cline 4 and later store sessions in `~/.cline/data/sessions/<id>/`, which the command-line tool and
all editors share. The messages file is rewritten after each message. Each reply includes the usage
of its call. The reported input includes cached tokens.

Older versions store `tasks/<id>/ui_messages.json` in VS Code's global storage. A message's text is
a JSON string that contains both the prompt and the usage of the call. Only the usage is decoded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import msgspec

from sidecar import typed
from sidecar.agents.context_sizes import Content, ContextSizes
from sidecar.agents.file_reading import (
    CamelRecord,
    Number,
    Record,
    decode_document,
    decode_file,
    reported_usage,
    time_from_ms,
    token_count,
    try_decode_file,
)
from sidecar.agents.folders import Places, editor_folders
from sidecar.agents.session_events import CallFinished, CallSize, McpToolCall, Store, StoreRead
from sidecar.agents.stores import (
    ContextTrack,
    DocumentReader,
    SessionState,
    TwoStores,
    store_from_path,
    with_size_of,
)
from sidecar.known_agents import all_agents
from sidecar.messages.vendor_usage import Usage
from sidecar.models.catalogue import provider_of


class _Numbers(CamelRecord):
    tokens_in: Number = None
    tokens_out: Number = None
    cache_reads: Number = None
    cache_writes: Number = None
    cost: Number = None
    api_protocol: str | None = None

    @property
    def usage(self) -> Usage:
        """The call's usage. Only OpenAI's format includes cached tokens in the input."""
        return reported_usage(
            self.tokens_in,
            self.tokens_out,
            self.cache_reads,
            self.cache_writes,
            includes_cached=self.api_protocol == "openai",
        )


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
        """A completed call's usage data, or None for other messages."""
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


TASK_FILE = "ui_messages.json"


class Tasks(DocumentReader):
    """Reads the tasks of an editor extension: a fork of Cline, or Cline before version 4."""

    pattern = rf"[^/]+/{re.escape(TASK_FILE)}"

    def folders(self, places: Places) -> tuple[str, ...]:
        """Return the folders of tasks. Those of Cline's forks are not watched.

        Each of their tasks contains a git repository.
        """
        return self.searched_folders(places) if all_agents()[self.agent].reader is None else ()

    def searched_folders(self, places: Places) -> tuple[str, ...]:
        extension = all_agents()[self.agent].extension
        return tuple(
            os.path.join(user, "globalStorage", extension, "tasks")
            for user in editor_folders(places, self.agent)
            if extension
        )

    def parse(self, store: Store, data: bytes) -> StoreRead:
        path, messages = Path(store.path), decode_document(data, list[_Message])
        models = _read_models(path)
        session, calls = SessionState(path.parent.name), list[CallFinished]()
        session.work_in(_folder_of_task(path.parent))
        for message in messages[:1] + messages[-1:]:
            session.touch(time_from_ms(message.ts))
        for message in messages:
            if message.say == "condense_context" and not message.partial:
                session.track = _after_summary(session.track, message)
            numbers, at = message.numbers, time_from_ms(message.ts)
            if numbers is None:
                continue
            usage, (model, provider) = numbers.usage, _model_and_provider(message, models)
            session.model = model
            session.track = session.track.call(CallSize.of(usage, model))
            request = f"{session.id}/{int(message.ts or 0)}"
            calls += session.call(
                at, usage, request, model, provider, reported_cost=reported_usd(numbers.cost)
            )
        return StoreRead(calls, [session.snapshot()])

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:  # noqa: ARG002
        """Add the parts of the latest request, which are in `api_conversation_history.json`."""
        shown = decode_file(path, list[_Message])
        prompts = iter([one.numbers.usage.prompt_tokens for one in shown if one.numbers])
        if any(one.say == "condense_context" for one in shown):
            return  # it is unknown which messages each request contained
        sent = Path(path).with_name("api_conversation_history.json")
        for message in decode_file(str(sent), list[_SentMessage]):
            if message.role == "assistant" and (size := next(prompts, None)) is not None:
                sizes.add_prompt(size, has_all_before=True)
            message.add_parts(sizes)


class _SentMessage(Record):
    role: str | None = None
    content: Content = None

    def add_parts(self, sizes: ContextSizes) -> None:
        sizes.add_message(self.content, "assistant" if self.role == "assistant" else "user")


def reported_usd(cost: Number) -> Decimal | None:
    """Return the cost in USD that an agent reports, or None if it is missing or negative."""
    return None if cost is None or cost < 0 else Decimal(repr(cost))


def _after_summary(track: ContextTrack, one: _Message) -> ContextTrack:
    size = token_count(one.context_condense.new_context_tokens if one.context_condense else None)
    return track.call(CallSize(size)) if size else track.compaction()


def _model_and_provider(one: _Message, models: Sequence[_Used]) -> tuple[str | None, str]:
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
        cached = self.cache_read_tokens, self.cache_write_tokens
        return reported_usage(self.input_tokens, self.output_tokens, *cached)


class _Model(Record):
    id: str | None = None
    provider: str | None = None


class _Reply(_SentMessage, rename="camel"):
    id: str | None = None
    ts: Number = None
    model_info: _Model | None = None
    metrics: _Metrics | None = None

    @property
    def usage(self) -> Usage | None:
        """The reply's usage, or None for other messages."""
        usage = self.metrics.usage if self.metrics else None
        return usage if usage and usage.prompt_tokens + usage.output_tokens else None


class _File(CamelRecord):
    agent: str | None = None
    session_id: str | None = None
    messages: list[_Reply] | None = None

    def add_parts(self, sizes: ContextSizes) -> None:
        for message in self.messages or ():
            if message.metrics is not None:
                sizes.add_prompt(message.metrics.usage.prompt_tokens)
            message.add_parts(sizes)


class _Manifest(Record):
    pid: int | None = None
    """The process that runs the session."""
    cwd: str | None = None
    workspace_root: str | None = None
    model: str | None = None
    provider: str | None = None
    status: str | None = None
    ended_at: str | None = None

    @property
    def folder(self) -> str:
        return self.cwd or self.workspace_root or ""


class ClineSessions(DocumentReader):
    pattern = r"[^/]+/[^/]+\.messages\.json"

    def searched_folders(self, places: Places) -> tuple[str, ...]:
        return tuple(map(str, places.defaults(self.agent)))

    def store_at(self, places: Places, path: str) -> Store | None:
        changed = Path(path)
        if changed.name == f"{changed.parent.name}.json":
            changed = changed.with_suffix(_MESSAGES)
        return super().store_at(places, str(changed))

    def make_store(self, path: str) -> Store | None:
        """Return a conversation's store.

        A change to a main conversation's manifest counts as a change to its store, too.
        """
        messages, session = Path(path), Path(path).parent.name
        store = store_from_path(self.agent, path, live=messages.name.startswith(f"{session}."))
        manifest = store_from_path(self.agent, messages.with_name(f"{session}.json"))
        return with_size_of(store, manifest) if store and store.live and manifest else store

    def parse(self, store: Store, data: bytes) -> StoreRead:
        """Parse the conversation of a session or of one of its sub-agents."""
        document, manifest = decode_document(data, _File), _read_manifest(store.path)
        session = SessionState(document.session_id or Path(store.path).parent.name)
        session.work_in(manifest.folder)
        session.ended = manifest.ended_at is not None and manifest.status != "running"
        is_lead = document.agent in (None, _LEAD)
        session.model, provider = manifest.model, manifest.provider
        calls = list[CallFinished]()
        document.add_parts(session.sizes)
        for reply in document.messages or ():
            usage, at = reply.usage, time_from_ms(reply.ts)
            session.touch(at)
            if usage is None:
                continue
            if reply.model_info is not None:
                session.model = reply.model_info.id or session.model
                provider = reply.model_info.provider or provider
            session.track = session.track.call(CallSize.of(usage, session.model))
            calls += session.call(
                at,
                usage,
                reply.id or f"{session.id}/{int(reply.ts or 0)}",
                session.model,
                provider,
                category="main" if is_lead else "subagent",
                reported_cost=reported_usd(reply.metrics.cost if reply.metrics else None),
            )
        snapshot = session.snapshot()
        if not is_lead:
            name = f"{session.id}/{Path(store.path).name}"
            snapshot = msgspec.structs.replace(snapshot, id=name, subagent_of=session.id)
        return StoreRead(calls, [snapshot] if store.live or not is_lead else [])

    def made_call(self, path: str, session: str, call: McpToolCall) -> bool:  # noqa: ARG002
        return _read_manifest(path).pid == call.process

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:  # noqa: ARG002
        decode_file(path, _File).add_parts(sizes)


READER = TwoStores(
    ClineSessions(),
    Tasks(),
    lambda path: not path.endswith(_MESSAGES),
)


def _read_manifest(path: str) -> _Manifest:
    folder = Path(path).parent
    return try_decode_file(folder / f"{folder.name}.json", _Manifest) or _Manifest()
