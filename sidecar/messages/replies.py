"""Reads a reply of any vendor, whole or as an array of stream events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import msgspec

from sidecar.errors import VendorFormatError
from sidecar.messages.reply import Exhausted, Loose, Reply, ReplyDraft, ReplyFormat
from sidecar.messages.vendors import (
    anthropic,
    bedrock,
    cohere,
    failures,
    gemini,
    lmstudio,
    ollama,
    openai_chat,
    openai_responses,
)

FORMATS: tuple[ReplyFormat, ...] = get_args(ReplyFormat)

_OPENAI = openai_chat.add, openai_chat.EXHAUSTED
_READERS: Mapping[
    ReplyFormat, tuple[Callable[[ReplyDraft, Loose], None], Mapping[str, Exhausted]]
] = {
    "openai-chat": _OPENAI,
    "openai-responses": (openai_responses.add, openai_responses.EXHAUSTED),
    "anthropic": (anthropic.add, anthropic.EXHAUSTED),
    "gemini": (gemini.add, gemini.EXHAUSTED),
    "bedrock": (bedrock.add, bedrock.EXHAUSTED),
    "ollama": (ollama.add, ollama.EXHAUSTED),
    "lmstudio": (lmstudio.add, lmstudio.EXHAUSTED),
    "mistral": _OPENAI,
    "cohere": (cohere.add, cohere.EXHAUSTED),
    "deepseek": _OPENAI,
    "xai": _OPENAI,
}
_KEYS: tuple[tuple[str, ReplyFormat], ...] = (
    ("candidates", "gemini"),
    ("usageMetadata", "gemini"),
    ("promptFeedback", "gemini"),
    ("choices", "openai-chat"),
    ("stopReason", "bedrock"),
    ("messageStart", "bedrock"),
    ("contentBlockStart", "bedrock"),
    ("contentBlockDelta", "bedrock"),
    ("messageStop", "bedrock"),
    ("done", "ollama"),
    ("stats", "lmstudio"),
    ("fragment", "lmstudio"),
    ("model_instance_id", "lmstudio"),
    ("generation_id", "cohere"),
    ("event_type", "cohere"),
    ("stop_reason", "anthropic"),
    ("finish_reason", "cohere"),
)
_TYPES: Mapping[str, ReplyFormat] = {
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
    """Read a vendor's response object, or the array of its stream events.

    An error that the prompt does not fit is also a reply, with `exhausted` "window" and its
    numbers in `overflow`.

    Args:
        response: The object, array or text.
        format: One of `FORMATS`; recognised by default.

    Raises:
        VendorFormatError: It is not a reply, has an unknown format, or is another error.
    """
    parts = [part for part in _parts(response) if part]
    if not parts:
        raise VendorFormatError("the response is empty, or not an object or array of objects")
    if format is not None and format not in _READERS:
        raise VendorFormatError(f"unknown format; known are {', '.join(FORMATS)}")
    error = failures.find_error(parts)
    recognised = _recognise(parts)
    named = next((known for known in FORMATS if known == format), recognised)
    if error and (recognised is None or failures.overflow(error)):
        return _failed(error, named or failures.format_of(parts))
    if named is None:
        raise VendorFormatError("the response is not in a known vendor's format; set `format`")
    reply = _read(parts, named)
    if recognised is None and not _says_anything(reply):
        raise VendorFormatError(f"the response does not have the form of {named}")
    return reply


def _read(parts: Sequence[Loose], format: ReplyFormat) -> Reply:
    as_openai = format == "lmstudio" and any("choices" in part for part in parts)
    add, exhausted = _OPENAI if as_openai else _READERS[format]
    draft = ReplyDraft(format)
    for part in parts:
        add(draft, part)
    return draft.finish(exhausted)


def _failed(error: Loose, format: ReplyFormat) -> Reply:
    overflow = failures.overflow(error)
    if overflow is None:
        raise failures.refuse(error)
    draft = ReplyDraft(format)
    draft.overflow = overflow
    draft.set_stop_reason(failures.kind(error))
    return draft.finish({})


def _says_anything(reply: Reply) -> bool:
    return bool(reply.content or reply.tool_calls or reply.stop_reason or reply.usage)


def _recognise(parts: Sequence[Loose]) -> ReplyFormat | None:
    for part in parts:
        kind = part.get("type")
        if part.get("object") == "response" or str(kind).startswith("response."):
            return "openai-responses"
        if isinstance(kind, str) and kind in _TYPES:
            return _TYPES[kind]
        for key, format in _KEYS:
            if key in part:
                return format
    return None


def _parts(response: object) -> Iterator[Loose]:
    for event in response if isinstance(response, list | tuple) else (response,):
        if isinstance(event, Mapping):
            yield _unwrapped(dict(event))
        elif isinstance(event, str):
            yield from _lines(event)


def _unwrapped(event: dict[str, Any]) -> Loose:
    data = event.get("data")
    if set(event) <= {"event", "data", "id", "retry"} and isinstance(data, str | Mapping):
        inner = _decoded(data) if isinstance(data, str) else data
        return dict(inner) if isinstance(inner, Mapping) else {}
    return event


def _lines(text: str) -> Iterator[Loose]:
    """Yield the JSON objects in the text of a reply, an SSE stream or NDJSON.

    Other lines, such as `[DONE]` or `event: x`, are skipped.
    """
    whole = _decoded(text)
    if whole is not None:
        yield from _parts(whole)
        return
    for line in text.splitlines():
        yield from _parts(_decoded(line.removeprefix("data:")) or ())


def _decoded(text: str) -> object:
    try:
        decoded: object = msgspec.json.decode(text.strip())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict | list) else None
