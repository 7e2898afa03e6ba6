"""Asking llama.cpp itself, past everything of ours."""

from __future__ import annotations

import ssl
from typing import Any

import httpx

# Nothing here is TLS; without this, each request would read all certificates first.
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def post(url: str, body: dict[str, Any]) -> Any:
    """The decoded answer."""
    return httpx.post(url, json=body, timeout=30, verify=_NO_CERTIFICATES).json()


def post_for_text(url: str, body: dict[str, Any]) -> str:
    """The answer as it came."""
    return httpx.post(url, json=body, timeout=30, verify=_NO_CERTIFICATES).text


def text_tokens(url: str, text: str) -> int:
    """Tokens in a text, special tokens taken as plain characters."""
    body = {"content": text, "parse_special": False}
    return len(post(f"{url}/tokenize", body)["tokens"])


def chat_tokens(url: str, messages: list[dict[str, Any]]) -> int:
    """Tokens of a whole chat."""
    tokens: int = post(f"{url}/v1/chat/completions/input_tokens", {"messages": messages})[
        "input_tokens"
    ]
    return tokens
