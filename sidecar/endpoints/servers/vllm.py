"""vLLM and SGLang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sidecar.endpoints.chats import ChatMessage, Tools, openai_body
from sidecar.endpoints.servers.base import Listed, Request, Server, field, positive

if TYPE_CHECKING:
    from sidecar.endpoints.http import Connection


def text_request(model: str, text: str) -> Request:
    """POST /tokenize without the begin-of-text token, which belongs to a prompt."""
    return Request("/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})


def chat_request(model: str, messages: Sequence[ChatMessage], tools: Tools) -> Request:
    """POST /tokenize with messages: by the model's own chat template."""
    body = openai_body(messages, tools, model=model, add_generation_prompt=True)
    return Request("/tokenize", body)


async def limit(connection: Connection, model: str, listed: Listed | None) -> int | None:
    """`max_model_len` in /v1/models."""
    del connection, model
    return positive(listed.max_model_len) if listed else None


SERVER = Server(
    name="vllm",
    text=text_request,
    read_text=field("count"),
    chat=chat_request,
    read_chat=field("count"),
    limit=limit,
)
SGLANG = replace(SERVER, name="sglang")
