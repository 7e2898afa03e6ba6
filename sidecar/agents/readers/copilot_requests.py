"""Reads Copilot's chats in VS Code, which are stored as a chat and the changes of it.

A line sets, appends to or deletes a value. The lines are applied to a typed record, and changes to
fields that the record does not declare are ignored.

`promptTokens` is the prompt size of the latest call. This is the context size, not the billed
input. `completionTokens` is the output of the whole turn. Only `modelTotals` contains the total
input of a turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, get_args, get_origin

import msgspec

from sidecar import typed
from sidecar.agents.context_sizes import ContextSizes
from sidecar.agents.fields import (
    CamelRecord,
    Number,
    Record,
    credits_to_usd,
    provider_of,
    reported_usage,
    time_from_ms,
    token_count,
)
from sidecar.agents.session_events import CallFinished, CallSize
from sidecar.agents.stores import ContextTrack, SessionState
from sidecar.agents.vscode_storage import Uri
from sidecar.messages.vendor_usage import Usage
from sidecar.models.catalogue import known_window

INITIAL, SET, PUSH, DELETE = range(4)
_MOST_ITEMS = 1 << 16

ItemPath = tuple[str | int, ...]


class Mutation(Record):
    """A log line. Its value is decoded when the line is applied."""

    kind: int
    path: ItemPath = msgspec.field(default=(), name="k")
    value: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="v")
    length: int | None = msgspec.field(default=None, name="i")


decode_mutation = typed.decoder(Mutation)
"""Decode a log line.

Raises:
    msgspec.DecodeError: The line is malformed.
"""


def apply_mutation(state: Record, line: Mutation) -> None:
    """Apply a log line to a record. Changes to undeclared fields are ignored.

    Raises:
        msgspec.DecodeError: The value does not match the type of the field.
    """
    holder: Any = state
    kind: Any = type(state)
    for step in line.path[:-1]:
        holder, kind = _get_child(holder, step), _type_of(kind, step)
        if holder is None or kind is None:
            return
    target = _type_of(kind, line.path[-1]) if line.path else None
    if target is None:
        return
    if line.kind == SET:
        _set_child(holder, line.path[-1], _decoder_for(target)(line.value))
    elif line.kind == DELETE:
        _set_child(holder, line.path[-1], None)
    elif line.kind == PUSH:
        _append_items(holder, line.path[-1], _decoder_for(target)(line.value) or [], line.length)


def _append_items(holder: Any, step: str | int, more: Any, length: int | None) -> None:
    items = _get_child(holder, step)
    kept = [] if items is None else items if length is None else items[: max(0, length)]
    if isinstance(kept, list) and isinstance(more, list):
        _set_child(holder, step, [*kept, *more])


def _fields_of(holder: Any) -> dict[str | int, tuple[str, Any]]:
    kind: Any = type(holder)
    return _fields_by_name(kind)


def _get_child(holder: Any, step: str | int) -> Any:
    if isinstance(holder, list):
        return holder[step] if isinstance(step, int) and 0 <= step < len(holder) else None
    field = _fields_of(holder).get(step)
    return None if field is None else getattr(holder, field[0])


def _set_child(holder: Any, step: str | int, value: Any) -> None:
    if not isinstance(holder, list):
        if field := _fields_of(holder).get(step):
            setattr(holder, field[0], value)
    elif isinstance(step, int) and 0 <= step < _MOST_ITEMS:
        holder += [None] * (step + 1 - len(holder))
        holder[step] = value


def _type_of(kind: Any, step: str | int) -> Any:
    for one in (kind, *get_args(kind)):
        if get_origin(one) is list:
            return get_args(one)[0] if isinstance(step, int) else None
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            return _fields_by_name(one).get(step, (None, None))[1]
    return None


@lru_cache(maxsize=64)
def _fields_by_name(kind: type) -> dict[str | int, tuple[str, Any]]:
    if not issubclass(kind, msgspec.Struct):
        return {}
    return {one.encode_name: (one.name, one.type) for one in msgspec.structs.fields(kind)}


@lru_cache(maxsize=256)
def _decoder_for(kind: Any) -> typed.Decoder[Any]:
    return typed.decoder(kind | None)


AGENT = "copilot-chat"
PROVIDER = "github-copilot"
_COMPLETE, _SEALED = 1, (1, 2, 3)
_NO_SUMMARY = (b"null", b'""', b"")
_VENDORS = {"gemini": "google", "xai": "x-ai", "copilot": PROVIDER, "copilotcli": PROVIDER}


class _Named(Record):
    id: str | None = None
    name: str | None = None


class _State(CamelRecord):
    value: int | None = None
    completed_at: Number = None


class _Usage(CamelRecord):
    prompt_tokens: Number = None
    completion_tokens: Number = None


class CallTotals(CamelRecord):
    """The model and usage of a call or turn."""

    model: str | None = None
    input_tokens: Number = None
    cached_tokens: Number = None
    output_tokens: Number = None

    @property
    def usage(self) -> Usage:
        return reported_usage(self.input_tokens, self.output_tokens, self.cached_tokens)


class _Summary(CamelRecord):
    tool_call_round_id: str | None = None
    outcome: str | None = None
    text: msgspec.Raw = msgspec.Raw(b"")

    @property
    def worked(self) -> bool:
        return self.outcome in (None, "", "success")


class _Round(Record):
    id: str | None = None
    summary: msgspec.Raw = msgspec.Raw(b"null")


class _Metadata(CamelRecord):
    prompt_tokens: Number = None
    output_tokens: Number = None
    resolved_model: str | None = None
    summary: _Summary | None = None
    summaries: list[_Summary] | None = None
    tool_call_rounds: Sequence[_Round] | None = None
    compacted: bool = msgspec.field(default=False, name="-compacted")

    def __post_init__(self) -> None:
        rounds, self.tool_call_rounds = self.tool_call_rounds or [], None
        summaries = (self.summary, *(self.summaries or []))
        made = [one.tool_call_round_id for one in summaries if one and one.worked]
        made += [one.id for one in rounds if bytes(one.summary) not in _NO_SUMMARY]
        newest = rounds[-1].id if rounds else None
        self.summary = self.summaries = None
        self.compacted = self.compacted or (bool(made) and (newest is None or newest in made))


class _Result(CamelRecord):
    prompt_tokens: Number = None
    output_tokens: Number = None
    usage: _Usage | None = None
    metadata: _Metadata | None = None


class CopilotTurn(CamelRecord):
    request_id: str | None = None
    timestamp: Number = None
    model_id: str | None = None
    prompt_tokens: Number = None
    completion_tokens: Number = None
    copilot_credits: Number = None
    model_totals: list[CallTotals | None] | None = None
    model_state: _State | None = None
    agent: _Named | None = None
    slash_command: _Named | None = None
    result: _Result | None = None

    @property
    def is_live(self) -> bool:
        return self.model_state is not None and self.model_state.value not in _SEALED

    @property
    def ended_at(self) -> datetime | None:
        """When the turn ended, or None if it is still running."""
        if self.is_live:
            return None
        completed = self.model_state.completed_at if self.model_state else None
        return time_from_ms(completed) or time_from_ms(self.timestamp)

    @property
    def compacted(self) -> bool:
        """Whether the turn ended with a compaction.

        If so, `prompt` is the size before the compaction.
        """
        names = [one.name for one in (self.agent, self.slash_command) if one]
        return "compact" in names or self._metadata.compacted

    @property
    def prompt(self) -> int:
        """The latest call's prompt size in tokens, or 0 if unknown."""
        result = self.result or _Result()
        older = result.usage or _Usage()
        numbers = (self.prompt_tokens, self._metadata.prompt_tokens, result.prompt_tokens)
        return next((n for n in map(token_count, (*numbers, older.prompt_tokens)) if n), 0)

    @property
    def last_output(self) -> int:
        """The output, in tokens, of the last call in a completed turn, or 0 if unknown."""
        finished = self.model_state is None or self.model_state.value == _COMPLETE
        return token_count(self._metadata.output_tokens) if finished else 0

    @property
    def output(self) -> int:
        """The total output of the turn in tokens. The actual output may be larger."""
        result = self.result or _Result()
        older = token_count(result.output_tokens) or token_count(
            (result.usage or _Usage()).completion_tokens
        )
        return (
            token_count(self.completion_tokens)
            or token_count(self._metadata.output_tokens)
            or older
        )

    @property
    def model(self) -> str | None:
        named = (self.model_id or "").rpartition("/")[2]
        return self._metadata.resolved_model or (named if named != "auto" else None) or None

    @property
    def provider(self) -> str:
        """The provider that bills the turn, based on the vendor in the model's id."""
        vendor = (self.model_id or "copilot/").partition("/")[0]
        return _VENDORS.get(vendor) or provider_of(vendor + "/" + (self.model or ""))

    @property
    def _metadata(self) -> _Metadata:
        found = self.result.metadata if self.result else None
        return found or _Metadata()


class _Limits(CamelRecord):
    max_input_tokens: Number = None
    max_output_tokens: Number = None


class _Configuration(CamelRecord):
    context_size: Number = None


class _Selected(CamelRecord):
    identifier: str | None = None
    metadata: _Limits | None = None
    model_configuration: _Configuration | None = None

    @property
    def window(self) -> int | None:
        """The context window in tokens, which is the sum of the input and output limits.

        Some providers report the whole window as the input limit, in which case the output limit
        is ignored.
        """
        limits = self.metadata or _Limits()
        chosen = token_count(
            self.model_configuration.context_size if self.model_configuration else None
        )
        prompt = chosen or token_count(limits.max_input_tokens)
        name = (self.identifier or "").rpartition("/")[2]
        if not prompt or known_window(name) == prompt:
            return prompt or None
        return prompt + token_count(limits.max_output_tokens)


class _Input(CamelRecord):
    selected_model: _Selected | None = None


class StoredChat(CamelRecord):
    """A chat session. Its text is not decoded."""

    session_id: str | None = None
    custom_title: str | None = None
    working_directory: str | Uri | None = None
    requests: list[CopilotTurn | None] | None = None
    input_state: _Input | None = None

    @property
    def turns(self) -> list[CopilotTurn]:
        """All requests that have not been removed."""
        return [one for one in self.requests or () if one is not None]

    @property
    def window(self) -> int | None:
        """The selected model's context window in tokens, or None if unknown."""
        selected = self.input_state.selected_model if self.input_state else None
        return selected.window if selected else None

    @property
    def selected(self) -> str | None:
        """The selected model's id, including the vendor."""
        selected = self.input_state.selected_model if self.input_state else None
        return selected.identifier if selected else None

    @property
    def track(self) -> ContextTrack:
        track = ContextTrack()
        for one in self.turns:
            if one.compacted:
                track = track.compaction()
            elif one.prompt or one.output or not one.is_live:
                track = track.call(CallSize(one.prompt, one.last_output, one.model))
        return track


class _ToolCall(Record):
    id: str | None = None
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"")


class _ContentRound(_Round, rename="camel"):
    """A model's reply, with its tool calls."""

    response: msgspec.Raw = msgspec.Raw(b"")
    thinking: msgspec.Raw = msgspec.Raw(b"")
    tool_calls: list[_ToolCall] | None = None


class _ContentMetadata(_Metadata):
    rendered_user_message: msgspec.Raw = msgspec.Raw(b"")
    tool_call_rounds: Sequence[_ContentRound] | None = None
    tool_call_results: dict[str, msgspec.Raw] | None = None

    def __post_init__(self) -> None:
        kept = self.tool_call_rounds, self.summary, self.summaries
        super().__post_init__()
        self.tool_call_rounds, self.summary, self.summaries = kept


class _ContentResult(_Result):
    metadata: _ContentMetadata | None = None


class _Prompt(Record):
    text: msgspec.Raw = msgspec.Raw(b"")


class _ResponsePart(Record):
    kind: str | None = None
    value: msgspec.Raw = msgspec.Raw(b"")


class ContentTurn(CopilotTurn):
    """A turn and its messages. The text of the messages is never decoded."""

    message: _Prompt | None = None
    response: list[_ResponsePart] | None = None
    result: _ContentResult | None = None

    @property
    def summaries(self) -> dict[str, msgspec.Raw]:
        """The turn's summaries. Each key is the id of the last round that the summary replaces."""
        made = (self._metadata.summary, *(self._metadata.summaries or ()))
        return {one.tool_call_round_id or "": one.text for one in made if one and one.worked}

    def add_to(self, sizes: ContextSizes, summaries: dict[str, msgspec.Raw]) -> None:
        """Add the turn's parts in order.

        Args:
            sizes: The sizes of the earlier turns.
            summaries: The summaries from all turns, keyed by round id.
        """
        prompt = (self.message or _Prompt()).text
        sizes.add("user", prompt)
        # The rendered message consists of the prompt, instructions and attached files.
        sizes.add("attachment", bytes(self._metadata.rendered_user_message)[len(bytes(prompt)) :])
        rounds = self._metadata.tool_call_rounds or (self._shown_reply(),)
        for one in rounds:
            if one is rounds[-1]:
                sizes.add_prompt(self.prompt, has_all_before=True)
            self._add_round(one, sizes)
            text = summaries.get(one.id or "", one.summary)
            if bytes(text) not in _NO_SUMMARY:
                sizes.compact()
                sizes.add("summary", text)
        if self.compacted:
            sizes.compact()

    @property
    def _metadata(self) -> _ContentMetadata:
        return (self.result.metadata if self.result else None) or _ContentMetadata()

    def _add_round(self, one: _ContentRound, sizes: ContextSizes) -> None:
        results = self._metadata.tool_call_results or {}
        sizes.add("assistant", one.response)
        sizes.add("assistant", one.thinking)
        for call in one.tool_calls or ():
            sizes.add("call", call.arguments, call.name or "")
            if (result := results.get(call.id or "")) is not None:
                sizes.add("result", result, call.name or "")

    def _shown_reply(self) -> _ContentRound:
        """Return the displayed text as a round. Used for turns that have no recorded rounds."""
        texts = (bytes(one.value) for one in self.response or () if one.kind is None)
        return _ContentRound(response=msgspec.Raw(b"".join(texts)))


class ContentChat(StoredChat):
    """A chat session with its messages."""

    requests: list[ContentTurn | None] | None = None  # type: ignore[assignment]

    def add_to(self, sizes: ContextSizes) -> None:
        turns = [one for one in self.requests or () if one is not None]
        summaries = {name: text for one in turns for name, text in one.summaries.items()}
        for one in turns:
            one.add_to(sizes, summaries)


def calls_of(request: CopilotTurn, session: SessionState) -> Iterator[CallFinished]:
    """Yield a turn's calls: one per model if totals are available, otherwise just one."""
    if request.request_id is None:
        return
    usd = credits_to_usd(request.copilot_credits)
    for number, (model, usage) in enumerate(_usage_by_model(request)):
        yield from session.call(
            time_from_ms(request.timestamp),
            usage,
            f"{request.request_id}/{number}" if number else request.request_id,
            model,
            request.provider,
            reported_cost=usd if number == 0 else None,
        )


def _usage_by_model(request: CopilotTurn) -> Sequence[tuple[str | None, Usage]]:
    totals = [one for one in request.model_totals or () if one is not None]
    if totals:
        return [(one.model or request.model, one.usage) for one in totals]
    return [(request.model, reported_usage(request.prompt, request.output))]
