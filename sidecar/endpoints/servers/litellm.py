"""The LiteLLM proxy, which hands counts on to the vendors that count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sidecar.endpoints.chats import ChatMessage, Tools, openai_body
from sidecar.endpoints.outcome import Fault
from sidecar.endpoints.servers.base import Listed, Request, Server, positive, whole

if TYPE_CHECKING:
    from sidecar.endpoints.http import Connection

_PATH = "/utils/token_counter?call_endpoint=true"
_GUESSES = ("local_estimate", "local_tokenizer", "local")


def chat_request(model: str, messages: Sequence[ChatMessage], tools: Tools) -> Request:
    """POST /utils/token_counter."""
    return Request(_PATH, openai_body(messages, tools, model=model))


def read(body: object) -> int:
    """`total_tokens`, unless LiteLLM says that it guessed; without a source it has guessed too."""
    if not isinstance(body, Mapping):
        raise Fault("unsupported", "the answer has no token count")
    source = body.get("count_source", body.get("litellm_count_source"))
    if not isinstance(source, str) or source in _GUESSES:
        raise Fault("unsupported", "LiteLLM guesses the tokens of this model itself")
    return whole(body.get("total_tokens"))


async def limit(connection: Connection, model: str, listed: Listed | None) -> int | None:
    """`max_input_tokens` in /v1/models."""
    del connection, model
    return positive(listed.max_input_tokens) if listed else None


SERVER = Server(name="litellm", chat=chat_request, read_chat=read, text_by_chat=True, limit=limit)
