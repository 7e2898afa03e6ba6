"""Reads Amp's `threads/T-*.json` files. Each contains one thread, without its sub-agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sidecar.agents.context_sizes import Content, ContextSizes
from sidecar.agents.file_reading import (
    CamelRecord,
    Number,
    Record,
    decode_document,
    decode_file,
    parse_time,
    reported_usage,
    time_from_ms,
    token_count,
)
from sidecar.agents.session_events import CallFinished, CallSize, Store, StoreRead
from sidecar.agents.stores import DocumentReader, SessionState
from sidecar.agents.vscode_storage import local_path
from sidecar.messages.vendor_usage import Usage
from sidecar.models.catalogue import provider_of


class _Usage(CamelRecord):
    model: str | None = None
    input_tokens: Number = None
    output_tokens: Number = None
    cache_creation_input_tokens: Number = None
    cache_read_input_tokens: Number = None
    max_input_tokens: Number = None
    timestamp: str | float | None = None

    @property
    def usage(self) -> Usage:
        """The call's usage. Amp reports the input of OpenAI models as cache writes."""
        fresh, written = token_count(self.input_tokens), self.cache_creation_input_tokens
        if provider_of(self.model or "") == "openai":
            fresh, written = fresh + token_count(written), None
        cached = self.cache_read_input_tokens, written
        return reported_usage(fresh, self.output_tokens, *cached, includes_cached=False)


class _Message(CamelRecord):
    role: str | None = None
    message_id: int | str | None = None
    usage: _Usage | None = None
    content: Content = None


class _Tree(Record):
    uri: str | None = None


class _Initial(Record):
    trees: list[_Tree] | None = None


class _Environment(Record):
    initial: _Initial | None = None


class _Thread(Record):
    id: str | None = None
    title: str | None = None
    created: Number = None
    messages: list[_Message] | None = None
    env: _Environment | None = None

    @property
    def folders(self) -> list[str]:
        initial = self.env.initial if self.env else None
        paths = (local_path(one.uri) for one in (initial.trees if initial else None) or ())
        return [path for path in paths if path]

    @property
    def replies(self) -> Iterator[tuple[str, _Usage]]:
        """The message id and usage of each reply."""
        for number, one in enumerate(self.messages or ()):
            if one.usage is not None:
                yield str(number if one.message_id is None else one.message_id), one.usage

    def add_parts(self, sizes: ContextSizes) -> None:
        for message in self.messages or ():
            if message.usage is not None:
                sizes.add_prompt(message.usage.usage.prompt_tokens)
            is_reply = message.role == "assistant"
            sizes.add_message(message.content, "assistant" if is_reply else "user")


class Amp(DocumentReader):
    inner = ("threads",)
    pattern = r"(.*/)?T-[^/]*\.json"

    def parse(self, store: Store, data: bytes) -> StoreRead:
        thread = decode_document(data, _Thread)
        session = SessionState(thread.id or Path(store.path).stem)
        session.touch(time_from_ms(thread.created))
        session.work_in("\n".join(thread.folders))
        session.title_at = session.id if thread.title else None
        calls = list[CallFinished]()
        for request, one in thread.replies:
            usage, session.model, at = one.usage, one.model, parse_time(one.timestamp)
            window = token_count(one.max_input_tokens) or None
            session.touch(at)
            session.track = session.track.call(CallSize.of(usage, one.model, window))
            calls += session.call(
                at or time_from_ms(thread.created),
                usage,
                f"{session.id}/{request}",
                one.model,
            )
        thread.add_parts(session.sizes)
        return StoreRead(calls, [session.snapshot()])

    def title(self, store: Store, title_at: str) -> str | None:  # noqa: ARG002
        return decode_file(store.path, _Thread).title

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:  # noqa: ARG002
        decode_file(path, _Thread).add_parts(sizes)


READER = Amp()
