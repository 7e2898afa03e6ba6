"""Requests to llama.cpp without any of our code."""

from __future__ import annotations

import ssl
from typing import Any

import httpx

# The server does not use TLS. Without this, each request would load all certificates first.
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def post(url: str, body: dict[str, Any]) -> Any:
    """Return the decoded answer to a POST request."""
    return httpx.post(url, json=body, timeout=30, verify=_NO_CERTIFICATES).json()


def post_for_text(url: str, body: dict[str, Any]) -> str:
    """Return the undecoded answer to a POST request."""
    return httpx.post(url, json=body, timeout=30, verify=_NO_CERTIFICATES).text


def text_tokens(url: str, text: str) -> int:
    """Return the tokens of a text, in which special tokens are plain characters."""
    body = {"content": text, "parse_special": False}
    return len(post(f"{url}/tokenize", body)["tokens"])


def chat_tokens(url: str, messages: list[dict[str, Any]]) -> int:
    """Return the tokens of a whole chat."""
    tokens: int = post(f"{url}/v1/chat/completions/input_tokens", {"messages": messages})[
        "input_tokens"
    ]
    return tokens
