"""Reads a reply from any vendor, either complete or as the events of a stream.

`read_reply` recognizes the vendor's format. It then calls the function for this format, which adds
each part to a `ReplyDraft`. A part is a complete reply or one event of a stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, get_args

import msgspec

from sidecar import typed
from sidecar.errors import VendorFormatError
from sidecar.messages.vendor_usage import (
    MOST_TOKENS,
    JsonObject,
    Usage,
    normalize_usage,
    reported_cost,
)

ReplyFormat = Literal[
    "openai-chat",
    "openai-responses",
    "anthropic",
    "gemini",
    "bedrock",
    "ollama",
    "lmstudio",
    "mistral",
    "cohere",
    "deepseek",
    "xai",
]
FORMATS: tuple[ReplyFormat, ...] = get_args(ReplyFormat)
Exhausted = Literal["output", "window"]
JsonDict = dict[str, Any]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call in a reply. It may be incomplete."""

    id: str
    name: str
    arguments_text: str
    """The received part of the arguments, as JSON."""
    arguments: JsonDict | None
    """The decoded arguments, or None if `arguments_text` is not a JSON object."""


class Overflow(msgspec.Struct, frozen=True):
    """The token counts in a server's error about a prompt that does not fit the context window."""

    prompt_tokens: int | None
    limit: int | None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply from any vendor."""

    format: ReplyFormat
    content: str = ""
    """The reply's text, without reasoning."""
    tool_calls: list[ToolCall] = []
    stop_reason: str | None = None
    """The stop reason as sent by the vendor, or None if the stream ended without one."""
    exhausted: Exhausted | None = None
    """Which limit ended the reply: the maximum output or the context window."""
    cut_off: bool = False
    """Whether the reply ran out of tokens or its stream ended without a stop reason."""
    usage: Usage | None = None
    usage_problem: str | None = None
    """Why the reply's usage could not be read, if there was a problem."""
    request_id: str | None = None
    model: str | None = None
    cost: Decimal | None = None
    """The cost in USD, if the reply reports it."""
    overflow: Overflow | None = None


class CallDraft:
    """A tool call that is still being received."""

    def __init__(self) -> None:
        self.id, self.name = "", ""
        self.is_complete, self.has_failed = False, False
        self.texts: list[str] = []
        self.decoded: JsonDict | None = None

    def add_arguments(self, arguments: object) -> None:
        """Add part of the arguments' JSON text, or all arguments as an object."""
        if isinstance(arguments, Mapping):
            self.decoded, self.is_complete = dict(arguments), True
        elif isinstance(arguments, str):
            self.texts.append(arguments)

    def finish(self, cut_off: bool) -> ToolCall:
        """Return the call.

        Args:
            cut_off: Whether the reply ended too early.
        """
        text, arguments = "".join(self.texts), self.decoded
        if arguments is None:
            arguments = self._decode(text, cut_off)
        elif not text:
            text = msgspec.json.encode(arguments).decode()
        return ToolCall(id=self.id, name=self.name, arguments_text=text, arguments=arguments)

    def _decode(self, text: str, cut_off: bool) -> JsonDict | None:
        if not text.strip():
            # Either the tool has no parameters, or the reply ended before the arguments arrived.
            return {} if (self.is_complete or not cut_off) and not self.has_failed else None
        try:
            return typed.decode(text, JsonDict)
        except (msgspec.DecodeError, RecursionError):
            return None


class ReplyDraft:
    """A reply that is being received, either as stream events or as one complete object."""

    def __init__(self, format: ReplyFormat) -> None:
        self.format = format
        self.texts: list[str] = []
        self.calls: dict[object, CallDraft] = {}
        self.usage: JsonDict = {}
        self.usage_problem: str | None = None
        self.stop_reason: str | None = None
        self.has_ended = False
        """Whether the vendor has marked the end of the reply, with or without a stop reason."""
        self.request_id: str | None = None
        self.model: str | None = None
        self.cost: Decimal | None = None
        self.overflow: Overflow | None = None

    def add_text(self, text: str | None) -> None:
        if text:
            self.texts.append(text)

    def call(self, key: object, call_id: str | None = None, name: str | None = None) -> CallDraft:
        """Return the draft of the tool call with this key, creating it if necessary.

        An id or name that is still empty is set to the given value.
        """
        draft = self.calls.setdefault(key, CallDraft())
        draft.id, draft.name = draft.id or call_id or "", draft.name or name or ""
        return draft

    def complete_call(self, key: object) -> None:
        """Mark a tool call as completely received."""
        if key in self.calls:
            self.calls[key].is_complete = True

    def clear_content(self) -> None:
        """Discard the text and tool calls received so far, because a final event repeats them."""
        self.texts.clear()
        self.calls.clear()

    def add_usage(self, usage: object) -> None:
        """Add usage fields. If a stream repeats a field, the last value other than null is used."""
        if isinstance(usage, Mapping):
            self.usage.update({key: value for key, value in usage.items() if value is not None})
        elif usage is not None:
            self.usage_problem = "the reply's usage is not an object"

    def set_origin(self, request_id: str | None = None, model: str | None = None) -> None:
        """Set the reply's id and model if they are not set yet."""
        self.request_id = self.request_id or request_id or None
        self.model = self.model or model or None

    def set_cost(self, part: JsonObject) -> None:
        """Set the cost, which may be 0, if this part of the reply reports it."""
        cost = reported_cost(part)
        self.cost = self.cost if cost is None else cost

    def set_stop_reason(self, reason: str | None) -> None:
        """Set the stop reason. None is ignored, because streams send null until they end."""
        self.stop_reason = reason or self.stop_reason

    def finish(self, exhausted: Mapping[str, Exhausted]) -> Reply:
        """Return the reply.

        Args:
            exhausted: The stop reasons that mean that the reply ran out of tokens. Each is mapped
                to the limit that was reached.
        """
        limit = "window" if self.overflow else exhausted.get(self.stop_reason or "")
        cut_off = limit is not None or not (self.stop_reason or self.has_ended)
        usage = self._read_usage()
        return Reply(
            format=self.format,
            content="".join(self.texts),
            tool_calls=[call.finish(cut_off) for call in self.calls.values()],
            stop_reason=self.stop_reason,
            exhausted=limit,
            cut_off=cut_off,
            usage=usage,
            usage_problem=self.usage_problem,
            request_id=self.request_id,
            model=self.model,
            cost=self.cost,
            overflow=self.overflow,
        )

    def _read_usage(self) -> Usage | None:
        if self.usage_problem is not None:
            return None
        try:
            return normalize_usage(self.usage, self.format)
        except VendorFormatError as error:
            self.usage_problem = str(error)
        return None


class Fields:
    """The fields of a JSON object in a reply. Fields that are missing or null count as empty.

    The methods raise VendorFormatError, which names the field, if a field has the wrong type.
    """

    def __init__(self, raw: Mapping[str, Any], path: str = "") -> None:
        self.raw, self._path = raw, path

    def get(self, name: str) -> Any:
        return self.raw.get(name)

    def has(self, name: str) -> bool:
        return self.raw.get(name) is not None

    def text(self, *names: str) -> str | None:
        """Return the first non-empty string in these fields, or None."""
        return next((text for name in names if (text := self._typed(name, str, "a string"))), None)

    def index(self, name: str) -> int:
        return self._typed(name, int, "a whole number") or 0

    def object(self, name: str) -> Fields:
        return Fields(self._typed(name, Mapping, "an object") or {}, f"{self._path}{name}.")

    def objects(self, name: str) -> list[Fields]:
        """Return the objects in a list. A single object is treated as a list of one."""
        if isinstance(self.get(name), Mapping):
            return [self.object(name)]
        entries = self._typed(name, list, "a list") or []
        if not all(isinstance(entry, Mapping) for entry in entries):
            raise self._error(name, "a list of objects")
        return [Fields(entry, f"{self._path}{name}[{at}].") for at, entry in enumerate(entries)]

    def texts(self, name: str, type: str = "text") -> Iterator[str | None]:
        """Yield the field if it is a string. Otherwise, yield the text of the blocks of a type.

        A block without a type is treated as a text block.
        """
        if isinstance(self.get(name), str):
            yield self.get(name)
            return
        for block in self.objects(name):
            if (block.text("type") or "text") == type:
                yield block.text("text")

    def _typed(self, name: str, type: type[Any], noun: str) -> Any:
        value = self.get(name)
        if value is not None and not isinstance(value, type):
            raise self._error(name, noun)
        return value

    def _error(self, name: str, noun: str) -> VendorFormatError:
        return VendorFormatError(
            f"the reply has an unexpected structure: `{self._path}{name}` is not {noun}"
        )


def _add_openai_chat(draft: ReplyDraft, part: Fields) -> None:
    """Add the first choice of a complete chat completion or of one chunk."""
    draft.set_origin(part.text("id"), part.text("model"))
    draft.add_usage(part.get("timings"))
    draft.add_usage(part.get("usage"))
    draft.set_cost(part.raw)
    for choice in part.objects("choices"):
        if choice.index("index") == 0:
            draft.set_stop_reason(choice.text("finish_reason"))
            _add_openai_message(draft, choice.object("message"))
            _add_openai_message(draft, choice.object("delta"))
    draft.set_stop_reason(part.object("stats").text("stop_reason"))


def _add_openai_message(draft: ReplyDraft, message: Fields) -> None:
    for text in message.texts("content"):
        draft.add_text(text)
    for position, call in enumerate(message.objects("tool_calls")):
        _add_function(draft, _openai_call_key(draft, call, position), call)
    if message.has("function_call"):
        legacy = message.object("function_call")
        draft.call("function_call", None, legacy.text("name")).add_arguments(
            legacy.get("arguments")
        )


def _add_function(
    draft: ReplyDraft, key: object, call: Fields, default: JsonDict | None = None
) -> None:
    function = call.object("function")
    target = draft.call(key, call.text("id"), function.text("name"))
    target.add_arguments(function.get("arguments") if function.has("arguments") else default)


def _openai_call_key(draft: ReplyDraft, call: Fields, position: int) -> object:
    """Return the key of the call that a chunk belongs to.

    Usually, the key is the index. If a call with a different id starts at the same index, the key
    also contains the id. This is necessary because Gemini's OpenAI-compatible stream sends all
    calls at index 0.
    """
    index = call.index("index") if call.has("index") else position
    at_index = [
        key for key in draft.calls if key == index or (isinstance(key, tuple) and key[0] == index)
    ]
    if not at_index:
        return index
    call_id, last_id = call.text("id"), draft.calls[at_index[-1]].id
    return (index, call_id) if call_id and last_id and call_id != last_id else at_index[-1]


def _add_openai_responses(draft: ReplyDraft, part: Fields) -> None:
    """Add a response object from OpenAI's Responses API, or an event from its stream."""
    kind = str(part.get("type"))
    if not kind.startswith("response."):
        _add_openai_response(draft, part)
    elif part.has("response"):
        _add_openai_response(draft, part.object("response"))
    elif kind == "response.output_text.delta" and isinstance(part.get("delta"), str):
        draft.add_text(part.text("delta"))
    elif kind == "response.output_item.added":
        item = part.object("item")
        if item.text("type") == "function_call":
            _add_openai_item(draft, part.index("output_index"), item)
    elif kind == "response.function_call_arguments.delta":
        draft.call(part.index("output_index")).add_arguments(part.get("delta"))
    elif kind == "response.function_call_arguments.done":
        draft.call(part.index("output_index")).is_complete = True


def _add_openai_response(draft: ReplyDraft, response: Fields) -> None:
    draft.set_origin(response.text("id"), response.text("model"))
    draft.add_usage(response.get("usage"))
    draft.set_cost(response.raw)
    status, reason = response.text("status"), response.object("incomplete_details").text("reason")
    draft.set_stop_reason(reason or (None if status in ("in_progress", "queued") else status))
    output = response.objects("output")
    if output:
        draft.clear_content()
    for index, item in enumerate(output):
        _add_openai_item(draft, index, item)


def _add_openai_item(draft: ReplyDraft, index: int, item: Fields) -> None:
    kind = item.text("type")
    if kind == "message":
        for text in item.texts("content", "output_text"):
            draft.add_text(text)
    if kind not in ("function_call", "custom_tool_call"):
        return
    call = draft.call(index, item.text("call_id", "id"), item.text("name"))
    call.has_failed = item.text("status") == "incomplete"
    if kind == "function_call":
        call.add_arguments(item.text("arguments"))
    elif item.has("input"):
        call.add_arguments({"input": item.text("input") or ""})


def _add_anthropic(draft: ReplyDraft, part: Fields) -> None:
    """Add a message object or a stream event from Anthropic, Bedrock or Vertex."""
    kind, key = part.text("type") or "message", part.index("index")
    if kind == "message":
        _add_anthropic_message(draft, part)
        draft.set_cost(part.raw)
        return
    draft.add_usage(part.get("usage"))
    _add_anthropic_message(draft, part.object("message"))
    _add_anthropic_block(draft, key, part.object("content_block"))
    delta = part.object("delta")
    draft.set_stop_reason(delta.text("stop_reason"))
    if delta.text("type") == "text_delta":
        draft.add_text(delta.text("text"))
    if key in draft.calls:
        draft.calls[key].add_arguments(delta.text("partial_json"))
    if kind == "content_block_stop":
        draft.complete_call(key)


def _add_anthropic_message(draft: ReplyDraft, message: Fields) -> None:
    draft.set_origin(message.text("id"), message.text("model"))
    draft.add_usage(message.get("usage"))
    draft.set_stop_reason(message.text("stop_reason"))
    if isinstance(message.get("content"), str):
        draft.add_text(message.text("content"))
        return
    for index, block in enumerate(message.objects("content")):
        _add_anthropic_block(draft, index, block)
        if index in draft.calls:
            draft.call(index).add_arguments(block.object("input").raw)


def _add_anthropic_block(draft: ReplyDraft, index: int, block: Fields) -> None:
    if block.text("type") == "text":
        draft.add_text(block.text("text"))
    elif block.text("type") == "tool_use":
        draft.call(index, block.text("id"), block.text("name"))


def _add_gemini(draft: ReplyDraft, part: Fields) -> None:
    """Add the first candidate in a response or a stream event from Gemini or Vertex."""
    draft.set_origin(part.text("responseId"), part.text("modelVersion"))
    draft.add_usage(part.get("usageMetadata"))
    draft.set_stop_reason(part.object("promptFeedback").text("blockReason"))
    for candidate in part.objects("candidates"):
        if candidate.index("index") != 0:
            continue
        draft.set_stop_reason(candidate.text("finishReason"))
        for block in candidate.object("content").objects("parts"):
            if not block.get("thought"):
                draft.add_text(block.text("text"))
            if block.has("functionCall"):
                call = block.object("functionCall")
                target = draft.call(len(draft.calls), call.text("id"), call.text("name"))
                target.add_arguments(call.object("args").raw)


def _add_bedrock(draft: ReplyDraft, part: Fields) -> None:
    """Add a response from Bedrock's Converse API, or an event from ConverseStream."""
    draft.set_origin(part.object("ResponseMetadata").text("RequestId"))
    draft.set_stop_reason(part.text("stopReason") or part.object("messageStop").text("stopReason"))
    draft.add_usage(part.get("usage"))
    draft.add_usage(part.object("metadata").get("usage"))
    for index, block in enumerate(part.object("output").object("message").objects("content")):
        _add_bedrock_block(draft, index, block)
    for event, block_name in (("contentBlockStart", "start"), ("contentBlockDelta", "delta")):
        content = part.object(event)
        _add_bedrock_block(draft, content.index("contentBlockIndex"), content.object(block_name))
    if part.has("contentBlockStop"):
        draft.complete_call(part.object("contentBlockStop").index("contentBlockIndex"))


def _add_bedrock_block(draft: ReplyDraft, index: int, block: Fields) -> None:
    draft.add_text(block.text("text"))
    if block.has("toolUse"):
        use = block.object("toolUse")
        draft.call(index, use.text("toolUseId"), use.text("name")).add_arguments(use.get("input"))


def _add_ollama(draft: ReplyDraft, part: Fields) -> None:
    """Add a reply from Ollama's native API, or an object from its stream."""
    draft.set_origin(None, part.text("model"))
    draft.add_text(part.text("response"))
    draft.set_stop_reason(part.text("done_reason"))
    draft.has_ended = draft.has_ended or bool(part.get("done"))
    draft.add_usage({name: part.get(name) for name in ("prompt_eval_count", "eval_count")})
    message = part.object("message")
    draft.add_text(message.text("content"))
    for call in message.objects("tool_calls"):
        _add_function(draft, len(draft.calls), call, default={})


def _add_lmstudio(draft: ReplyDraft, part: Fields) -> None:
    """Add a result or event from LM Studio's SDK, or a reply from its REST API."""
    kind = part.text("type")
    if kind == "chat.end" and part.has("result"):
        draft.texts.clear()
        part = part.object("result")
        kind = part.text("type")
    fragment = part.object("fragment")
    if fragment.text("reasoningType") in (None, "none"):
        draft.add_text(fragment.text("content"))
    if kind in (None, "message.delta"):
        draft.add_text(part.text("content"))
    for output in part.objects("output"):
        draft.add_text(output.text("content") if output.text("type") == "message" else None)
    model = part.object("modelInfo").text("identifier", "modelKey")
    draft.set_origin(part.text("response_id"), model or part.text("model_instance_id"))
    if part.has("stats"):
        draft.has_ended = True
        draft.add_usage(part.get("stats"))
        if isinstance(part.get("stats"), Mapping):
            draft.set_stop_reason(part.object("stats").text("stopReason", "stop_reason"))
    _add_lmstudio_call(draft, part, kind)


def _add_lmstudio_call(draft: ReplyDraft, part: Fields, kind: str | None) -> None:
    last = len(draft.calls) - 1
    if kind == "toolCallGenerationStart":
        draft.call(last + 1, part.text("toolCallId"))
    elif kind == "toolCallGenerationNameReceived":
        draft.call(max(last, 0), None, part.text("name"))
    elif kind == "toolCallGenerationArgumentFragmentGenerated":
        draft.call(max(last, 0)).add_arguments(part.text("content"))
    elif kind == "toolCallGenerationFailed" and last >= 0:
        draft.call(last).has_failed = True
    elif kind == "toolCallGenerationEnd" and part.has("toolCallRequest"):
        request = part.object("toolCallRequest")
        call = draft.call(max(last, 0), request.text("id"), request.text("name"))
        call.texts.clear()
        call.add_arguments(request.object("arguments").raw)


def _add_cohere(draft: ReplyDraft, part: Fields) -> None:
    """Add a reply from Cohere's chat API (version 1 or 2), or an event from its stream."""
    if part.has("response"):  # this is the last event in version 1 of the API
        draft.clear_content()
        _add_cohere(draft, part.object("response"))
        return
    delta = part.object("delta")
    draft.set_origin(part.text("id", "response_id"))
    draft.add_text(part.text("text"))
    draft.set_stop_reason(part.text("finish_reason") or delta.text("finish_reason"))
    draft.add_usage(part.get("usage") or part.get("meta"))
    draft.add_usage(delta.get("usage"))
    _add_cohere_message(draft, part.object("message"), part.index("index"))
    for call in part.objects("tool_calls"):
        target = draft.call(len(draft.calls), call.text("id"), call.text("name"))
        target.add_arguments(call.get("parameters"))
    _add_cohere_message(draft, delta.object("message"), part.index("index"))
    if part.text("type") == "tool-call-end":
        draft.complete_call(part.index("index"))


def _add_cohere_message(draft: ReplyDraft, message: Fields, index: int) -> None:
    for text in message.texts("content"):
        draft.add_text(text)
    is_event = isinstance(message.get("tool_calls"), Mapping)
    for position, call in enumerate(message.objects("tool_calls")):
        _add_function(draft, index if is_event else position, call)


_Reader = tuple[Callable[[ReplyDraft, Fields], None], Mapping[str, Exhausted]]
"""A function that adds part of a reply to a draft, and a table of the vendor's stop reasons.

The table contains only the reasons for which a reply ends at a limit, and names the limit.
"""

_ANTHROPIC_REASONS: Mapping[str, Exhausted] = {
    "max_tokens": "output",
    "model_context_window_exceeded": "window",
}
_LMSTUDIO_REASONS: Mapping[str, Exhausted] = {
    "maxPredictedTokensReached": "output",
    "contextLengthReached": "window",
}
_OPENAI: _Reader = (
    _add_openai_chat,
    {
        "length": "output",
        "max_tokens": "output",
        "model_length": "window",  # Mistral
        **_LMSTUDIO_REASONS,
    },
)
_READERS: Mapping[ReplyFormat, _Reader] = {
    "openai-chat": _OPENAI,
    "openai-responses": (
        _add_openai_responses,
        {"max_output_tokens": "output", "max_tokens": "output"},
    ),
    "anthropic": (_add_anthropic, _ANTHROPIC_REASONS),
    "gemini": (_add_gemini, {"MAX_TOKENS": "output"}),
    "bedrock": (_add_bedrock, _ANTHROPIC_REASONS),
    "ollama": (_add_ollama, {"length": "output"}),
    "lmstudio": (_add_lmstudio, _LMSTUDIO_REASONS),
    "mistral": _OPENAI,
    "cohere": (_add_cohere, {"MAX_TOKENS": "output", "ERROR_LIMIT": "window"}),
    "deepseek": _OPENAI,
    "xai": _OPENAI,
}
_FORMAT_BY_KEY: Mapping[str, ReplyFormat] = {
    "candidates": "gemini",
    "usageMetadata": "gemini",
    "promptFeedback": "gemini",
    "choices": "openai-chat",
    "stopReason": "bedrock",
    "messageStart": "bedrock",
    "contentBlockStart": "bedrock",
    "contentBlockDelta": "bedrock",
    "messageStop": "bedrock",
    "done": "ollama",
    "stats": "lmstudio",
    "fragment": "lmstudio",
    "model_instance_id": "lmstudio",
    "generation_id": "cohere",
    "event_type": "cohere",
    "stop_reason": "anthropic",
    "finish_reason": "cohere",
}
"""The format that each key in a part implies. If a part has several keys, the first is used."""
_FORMAT_BY_TYPE: Mapping[str, ReplyFormat] = {
    "message": "anthropic",
    "message_start": "anthropic",
    "content_block_start": "anthropic",
    "content_block_delta": "anthropic",
    "message_delta": "anthropic",
    "message-start": "cohere",
    "content-delta": "cohere",
    "tool-call-start": "cohere",
    "message-end": "cohere",
    "chat.start": "lmstudio",
    "chat.end": "lmstudio",
    "message.delta": "lmstudio",
    "toolCallGenerationStart": "lmstudio",
}


def read_reply(response: object, format: str | None = None) -> Reply:
    """Read a vendor's response object, or the list of events in its stream.

    An error about a prompt that does not fit is also returned as a reply: `exhausted` is "window",
    and `overflow` contains the token counts that the server reported.

    Args:
        response: The object, list or text.
        format: One of `FORMATS`. By default, the format is detected.

    Raises:
        VendorFormatError: The response is not a reply, is in an unknown format, or is another
            error.
    """
    parts = [part for part in _parts(response) if part]
    if not parts:
        raise VendorFormatError(
            "the response is empty, or is neither an object nor a list of objects"
        )
    if format is not None and format not in _READERS:
        raise VendorFormatError(f"the format is unknown; known formats are {', '.join(FORMATS)}")
    error = _find_error(parts)
    recognized = _recognize_format(parts)
    chosen = next((known for known in FORMATS if known == format), recognized)
    if error and (recognized is None or _overflow_in(error)):
        return _read_error(error, chosen or _format_of_error(parts))
    if chosen is None:
        raise VendorFormatError("the response is not in a known vendor's format; set `format`")
    try:
        reply = _read_parts(parts, chosen)
    except RecursionError:
        raise VendorFormatError("the reply is nested too deeply") from None
    if recognized is None and not _has_content(reply):
        raise VendorFormatError(f"the response is not in {chosen} format")
    return reply


def _read_parts(parts: Sequence[JsonDict], format: ReplyFormat) -> Reply:
    is_openai = format == "lmstudio" and any("choices" in part for part in parts)
    add, exhausted = _OPENAI if is_openai else _READERS[format]
    draft = ReplyDraft(format)
    for part in parts:
        add(draft, Fields(part))
    return draft.finish(exhausted)


def _has_content(reply: Reply) -> bool:
    return bool(reply.content or reply.tool_calls or reply.stop_reason or reply.usage)


def _recognize_format(parts: Sequence[JsonDict]) -> ReplyFormat | None:
    for part in parts:
        kind = part.get("type")
        if part.get("object") == "response" or str(kind).startswith("response."):
            return "openai-responses"
        if isinstance(kind, str) and kind in _FORMAT_BY_TYPE:
            return _FORMAT_BY_TYPE[kind]
        for key, format in _FORMAT_BY_KEY.items():
            if key in part:
                return format
    return None


def _parts(response: object) -> Iterator[JsonDict]:
    for event in response if isinstance(response, list | tuple) else (response,):
        if isinstance(event, Mapping):
            yield _unwrap_event(dict(event))
        elif isinstance(event, str):
            yield from _parts_of_text(event)


def _unwrap_event(event: JsonDict) -> JsonDict:
    data = event.get("data")
    if set(event) <= {"event", "data", "id", "retry"} and isinstance(data, str | Mapping):
        inner = _decode_json(data) if isinstance(data, str) else data
        return dict(inner) if isinstance(inner, Mapping) else {}
    return event


def _parts_of_text(text: str) -> Iterator[JsonDict]:
    """Yield the JSON objects in a reply's text, an SSE stream or NDJSON.

    Lines that are not JSON, such as `[DONE]` or `event: x`, are skipped.
    """
    whole = _decode_json(text)
    if whole is not None:
        yield from _parts(whole)
        return
    for line in text.splitlines():
        yield from _parts(_decode_json(line.removeprefix("data:")) or ())


def _decode_json(text: str) -> object:
    try:
        decoded: object = typed.decode(text.strip(), Any)
    except msgspec.DecodeError:
        return None
    return decoded if isinstance(decoded, dict | list) else None


# Reading errors

_MAX_DIGITS = 20
"""Maximum number of digits to read, because Python refuses to parse thousands of digits."""
_OVERFLOW_TYPES = ("exceed_context_size_error", "context_length_exceeded")
_OVERFLOW_MESSAGES = (
    re.compile(r"prompt is too long: (?P<prompt>\d+) tokens > (?P<limit>\d+) maximum"),
    re.compile(
        r"input token count \(?(?P<prompt>\d+)\)? exceeds the maximum number of tokens"
        r" allowed \(?(?P<limit>\d+)"
    ),
    re.compile(
        r"maximum context length is (?P<limit>\d+) tokens.{0,80}?"
        r"(?:resulted in|requested|contains at least|you passed) (?P<prompt>\d+)",
        re.DOTALL,
    ),
)
_OVERFLOW_WITHOUT_NUMBERS = re.compile(
    r"Input is too long for requested model|maximum context length"
)


def _overflow_in(error: JsonDict) -> Overflow | None:
    """Return the token counts in a "prompt too long" error, or None for any other error.

    llama.cpp sends the counts as fields. Other servers send them in a sentence.
    """
    if error.get("type") in _OVERFLOW_TYPES or error.get("code") in _OVERFLOW_TYPES:
        prompt, limit = error.get("n_prompt_tokens"), error.get("n_ctx")
        if isinstance(prompt, int) and isinstance(limit, int):
            return _valid_overflow(prompt, limit)
        return _overflow_in_message(error) or Overflow(None, None)
    return _overflow_in_message(error)


def _overflow_in_message(error: JsonDict) -> Overflow | None:
    message = error.get("message")
    if not isinstance(message, str):
        return None
    for pattern in _OVERFLOW_MESSAGES:
        if match := pattern.search(message):
            return _valid_overflow(
                int(match["prompt"][:_MAX_DIGITS]), int(match["limit"][:_MAX_DIGITS])
            )
    return Overflow(None, None) if _OVERFLOW_WITHOUT_NUMBERS.search(message) else None


def _valid_overflow(prompt: int, limit: int) -> Overflow:
    return Overflow(
        prompt if 0 < prompt <= MOST_TOKENS else None, limit if 0 < limit <= MOST_TOKENS else None
    )


def _find_error(parts: Iterable[JsonDict]) -> JsonDict | None:
    """Return the first error object in a reply or a stream."""
    for part in parts:
        nested = part.get("response")
        for holder in (part, nested if isinstance(nested, Mapping) else {}):
            error = holder.get("error")
            if isinstance(error, str) and error:
                return {"message": error}
            if isinstance(error, Mapping) and error:
                return dict(error)
    return None


def _read_error(error: JsonDict, format: ReplyFormat) -> Reply:
    """Return the reply for a prompt that did not fit.

    Raises:
        VendorFormatError: The error has another cause. Its message is omitted, because it may quote
            the prompt.
    """
    words = (error.get(key) for key in ("type", "code", "status"))
    is_word = re.compile(r"[A-Za-z_.\- ]{1,60}").fullmatch
    word = next((word for word in words if isinstance(word, str) and is_word(word)), "error")
    overflow = _overflow_in(error)
    if overflow is None:
        raise VendorFormatError(f"the response is an error from the vendor ({word}), not a reply")
    draft = ReplyDraft(format)
    draft.overflow = overflow
    draft.set_stop_reason(word)
    return draft.finish({})


def _format_of_error(parts: Iterable[JsonDict]) -> ReplyFormat:
    for part in parts:
        error = part.get("error")
        if part.get("type") == "error":
            return "anthropic"
        if isinstance(error, Mapping) and "status" in error:
            return "gemini"
    return "openai-chat"
