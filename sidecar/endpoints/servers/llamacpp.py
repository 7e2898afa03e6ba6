"""llama.cpp's own server, one model or a router of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from sidecar.endpoints.chats import ChatMessage, Tools, openai_messages, openai_tools
from sidecar.endpoints.servers.base import (
    Listed,
    Request,
    Server,
    decode,
    field,
    ids,
    positive,
)

if TYPE_CHECKING:
    from sidecar.endpoints.http import Connection

# A router loads the model of a request unless asked not to; others ignore this.
_NO_LOAD = "autoload=false"


class _Settings(msgspec.Struct):
    n_ctx: int | None = None


class _Props(msgspec.Struct):
    default_generation_settings: _Settings | None = None


def text_request(model: str, text: str) -> Request:
    """POST /tokenize: the text alone, and special tokens written in it as plain characters."""
    body = {"model": model, "content": text, "add_special": False, "parse_special": False}
    return Request(f"/tokenize?{_NO_LOAD}", body)


def chat_request(model: str, messages: Sequence[ChatMessage], tools: Tools) -> Request:
    """POST /v1/chat/completions/input_tokens: by the model's own chat template.

    llama.cpp takes an assistant's message at the end as one to be continued, and refuses where
    that one calls tools. The next request must hold their results: empty ones are put there.
    """
    turns = openai_messages(messages)
    calls = turns[-1].get("tool_calls") if turns else None
    for call in calls or ():
        turns.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": ""})
    body = {"model": model, "messages": turns}
    if tools:
        body["tools"] = openai_tools(tools)
    return Request(f"/v1/chat/completions/input_tokens?{_NO_LOAD}", body)


async def limit(connection: Connection, model: str, listed: Listed | None) -> int | None:
    """The context of one slot, which is what one conversation has."""
    answer = await connection.get(f"/props?model={quote(model, safe='')}&{_NO_LOAD}")
    props = decode(answer.body, _Props) if answer.status == 200 else None
    if props and props.default_generation_settings:
        found = positive(props.default_generation_settings.n_ctx)
        if found:
            return found
    return positive(listed.meta.n_ctx) if listed and listed.meta else None


async def loaded(connection: Connection, listed: Sequence[Listed]) -> Sequence[Listed]:
    """A router lists what it could load too, and says which are."""
    del connection
    return [model for model in listed if model.status is None or model.status.value == "loaded"]


SERVER = Server(
    name="llamacpp",
    text=text_request,
    read_text=ids,
    chat=chat_request,
    read_chat=field("input_tokens"),
    limit=limit,
    loaded=loaded,
    parses_specials=False,
)
