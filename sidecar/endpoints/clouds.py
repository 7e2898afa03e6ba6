"""Describes how each vendor's API counts tokens and reports context windows.

A vendor is recognized by its host. POST requests are sent to a vendor only to count, never to
probe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

import msgspec

from sidecar import typed
from sidecar.endpoints.counting_requests import (
    Chat,
    Counting,
    PlainMessage,
    Request,
    Server,
    call_arguments,
    plain_message,
    read_ids,
    read_number,
    split_system,
    text_counting,
)
from sidecar.endpoints.outcome import EndpointError
from sidecar.messages.messages import read_tools
from sidecar.models.names import parse


def bearer(key: str) -> Mapping[str, str]:
    """Return the authorization header that most vendors expect, or no header if there is no key."""
    return {"Authorization": f"Bearer {key}"} if key else {}


@dataclass(frozen=True)
class Cloud:
    """A vendor's API, and how to request counts and model descriptions from it.

    Attributes:
        hosts: The vendor's hosts. Subdomains are included.
        headers: Returns the headers that authorize a request with the given API key.
        show: The path of the GET request that describes a model, or None.
        limit_fields: The fields of the description that may contain the context window.
        suffixes: Endings that are removed from configured URLs before a path is appended.
    """

    server: Server
    hosts: tuple[str, ...]
    headers: Callable[[str], Mapping[str, str]] = bearer
    show: str | None = "/v1/models/{model}"
    limit_fields: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ("/v1",)

    def show_path(self, model: str) -> str | None:
        """Return the path from which a description of `model` can be fetched.

        Raises:
            EndpointError: The name contains an empty, `.` or `..` segment, which HTTP clients
                would resolve.
        """
        id = parse(model).written
        if not {"", ".", ".."}.isdisjoint(id.split("/")):
            raise EndpointError("unsupported", "the model's name is not a valid id for this vendor")
        return self.show and self.show.format(model=quote(id, safe="/:"))


_ANTHROPIC_PATH = "/v1/messages/count_tokens"


def _anthropic_chat(model: str, chat: Chat) -> Request:
    turns, system = split_system(chat.messages)
    body: dict[str, Any] = {
        "model": parse(model).written,
        "messages": [_anthropic_message(turn) for turn in turns],
    }
    if not turns:
        raise EndpointError(
            "unsupported", "Anthropic only counts conversations that contain a user message"
        )
    if system:
        body["system"] = system
    if chat.tools:
        body["tools"] = [
            {
                "name": t.name,
                "description": t.description,
                "input_schema": _object_schema(t.parameters),
            }
            for t in read_tools(chat.tools)
        ]
    return Request(_ANTHROPIC_PATH, body)


def _anthropic_message(turn: PlainMessage) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": result.id, "content": result.text}
        for result in turn.results
    ]
    if turn.text:
        blocks.append({"type": "text", "text": turn.text})
    for call in turn.calls:
        use = {"type": "tool_use", "id": call.id, "name": call.name}
        blocks.append({**use, "input": call_arguments(call)})
    return {"role": "assistant" if turn.role == "assistant" else "user", "content": blocks}


def _object_schema(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    return parameters if "type" in parameters else {"type": "object", **parameters}


def _anthropic_headers(key: str) -> Mapping[str, str]:
    return {"x-api-key": key, "anthropic-version": "2023-06-01"}


ANTHROPIC = Cloud(
    server=Server(
        name="anthropic",
        chat=Counting(_anthropic_chat, read_number("input_tokens")),
        text_by_chat=True,
        parses_specials=False,
    ),
    hosts=("api.anthropic.com",),
    headers=_anthropic_headers,
    limit_fields=("max_input_tokens",),
)


def _openai_chat(model: str, chat: Chat) -> Request:
    items = [item for message in chat.messages for item in _openai_items(plain_message(message))]
    body: dict[str, Any] = {"model": model, "input": items}
    if chat.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
                "strict": False,
            }
            for tool in read_tools(chat.tools)
        ]
    return Request("/v1/responses/input_tokens", body)


def _openai_items(turn: PlainMessage) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = [
        {"type": "function_call_output", "call_id": result.id, "output": result.text}
        for result in turn.results
    ]
    if turn.text:
        items.append({"role": turn.role, "content": turn.text})
    for call in turn.calls:
        item = {"type": "function_call", "call_id": call.id, "name": call.name}
        items.append({**item, "arguments": call.arguments or "{}"})
    return items


OPENAI = Cloud(
    server=Server(
        name="openai",
        chat=Counting(_openai_chat, read_number("input_tokens")),
        text_by_chat=True,
        parses_specials=False,
    ),
    hosts=("api.openai.com",),
)


def _gemini_path(model: str) -> str:
    return f"/v1beta/models/{quote(model.removeprefix('models/'), safe='')}:countTokens"


def _gemini_text(model: str, text: str) -> Request:
    return Request(_gemini_path(model), {"contents": [{"parts": [{"text": text}]}]})


def _gemini_chat(model: str, chat: Chat) -> Request:
    turns, system = split_system(chat.messages)
    request: dict[str, Any] = {
        "model": f"models/{model.removeprefix('models/')}",
        "contents": [_gemini_content(turn) for turn in turns],
    }
    if system:
        request["systemInstruction"] = {"parts": [{"text": system}]}
    if chat.tools:
        declared = [
            {"name": t.name, "description": t.description, "parameters": dict(t.parameters)}
            for t in read_tools(chat.tools)
        ]
        request["tools"] = [{"functionDeclarations": declared}]
    return Request(_gemini_path(model), {"generateContentRequest": request})


def _gemini_content(turn: PlainMessage) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [
        {"functionResponse": {"name": result.name, "response": {"output": result.text}}}
        for result in turn.results
    ]
    if turn.text:
        parts.append({"text": turn.text})
    parts += [{"functionCall": {"name": c.name, "args": call_arguments(c)}} for c in turn.calls]
    return {"role": "model" if turn.role == "assistant" else "user", "parts": parts}


def _gemini_headers(key: str) -> Mapping[str, str]:
    return {"x-goog-api-key": key}


GEMINI = Cloud(
    server=Server(
        name="google",
        text=Counting(_gemini_text, read_number("totalTokens")),
        chat=Counting(_gemini_chat, read_number("totalTokens")),
    ),
    hosts=("generativelanguage.googleapis.com",),
    headers=_gemini_headers,
    show="/v1beta/models/{model}",
    limit_fields=("inputTokenLimit",),
    suffixes=("/v1beta/openai", "/v1beta", "/v1"),
)


COHERE = Cloud(
    server=Server(name="cohere", text=text_counting("/v1/tokenize", "text", read_ids("tokens"))),
    hosts=("api.cohere.com", "api.cohere.ai"),
    limit_fields=("context_length",),
    suffixes=("/v1", "/v2", "/compatibility/v1"),
)
XAI = Cloud(
    server=Server(
        name="xai", text=text_counting("/v1/tokenize-text", "text", read_ids("token_ids"))
    ),
    hosts=("api.x.ai",),
)


class _Vendor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of `clouds.toml`."""

    hosts: tuple[str, ...]
    show: str | None = None


@cache
def clouds() -> tuple[Cloud, ...]:
    """Return all vendors. The first that has a host is used."""
    others = typed.read_table("sidecar.endpoints", "clouds.toml", dict[str, _Vendor])
    fields = ("max_context_length", "context_window")
    return (
        *(ANTHROPIC, OPENAI, GEMINI, COHERE, XAI),
        *(Cloud(Server(name), one.hosts, bearer, one.show, fields) for name, one in others.items()),
    )


def find_cloud(host: str) -> Cloud | None:
    """Return the vendor of a host or its parent domain, or None."""
    name = host.lower().rstrip(".")
    for cloud in clouds():
        if any(name == known or name.endswith(f".{known}") for known in cloud.hosts):
            return cloud
    return None
