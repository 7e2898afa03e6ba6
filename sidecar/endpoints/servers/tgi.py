"""Hugging Face's text-generation-inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from sidecar.endpoints.chats import ChatMessage, Tools, openai_body
from sidecar.endpoints.servers.base import Listed, Request, Server, decode, length, positive

if TYPE_CHECKING:
    from sidecar.endpoints.http import Connection


class _Info(msgspec.Struct):
    max_total_tokens: int | None = None
    max_input_tokens: int | None = None


def text_request(model: str, text: str) -> Request:
    """POST /tokenize; a TGI has one model."""
    del model
    return Request("/tokenize", {"inputs": text, "add_special_tokens": False})


def chat_request(model: str, messages: Sequence[ChatMessage], tools: Tools) -> Request:
    """POST /chat_tokenize."""
    return Request("/chat_tokenize", openai_body(messages, tools, model=model))


def read_chat(body: object) -> int:
    """`{tokenize_response: [{id, …}], templated_text}`."""
    return length(body.get("tokenize_response") if isinstance(body, Mapping) else body)


async def limit(connection: Connection, model: str, listed: Listed | None) -> int | None:
    """Prompt and reply together, else the prompt, from /info."""
    del model, listed
    answer = await connection.get("/info")
    info = decode(answer.body, _Info) if answer.status == 200 else None
    return (positive(info.max_total_tokens) or positive(info.max_input_tokens)) if info else None


SERVER = Server(
    name="tgi",
    text=text_request,
    read_text=length,
    chat=chat_request,
    read_chat=read_chat,
    limit=limit,
)
