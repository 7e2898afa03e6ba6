"""Sends requests to llama.cpp without using the code under test."""

from __future__ import annotations

import ssl
from typing import Any

import httpx

# The server does not use TLS. Without this SSL context, each request would load all certificates.
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def post(url: str, body: dict[str, Any]) -> Any:
    """Send a POST request, and return the decoded JSON response."""
    return httpx.post(url, json=body, timeout=30, verify=_NO_CERTIFICATES).json()


def post_for_text(url: str, body: dict[str, Any]) -> str:
    """Send a POST request, and return the response as text."""
    return httpx.post(url, json=body, timeout=30, verify=_NO_CERTIFICATES).text


def text_tokens(url: str, text: str) -> int:
    """Return the number of tokens in the text. Special tokens are treated as plain text."""
    body = {"content": text, "parse_special": False}
    return len(post(f"{url}/tokenize", body)["tokens"])


def chat_tokens(url: str, messages: list[dict[str, Any]]) -> int:
    """Return the number of tokens in a whole conversation."""
    tokens: int = post(f"{url}/v1/chat/completions/input_tokens", {"messages": messages})[
        "input_tokens"
    ]
    return tokens
