"""The server of llama-cpp-python."""

from __future__ import annotations

from sidecar.endpoints.servers.base import Request, Server, field


def text_request(model: str, text: str) -> Request:
    """POST /extras/tokenize/count, which puts a begin-of-text token before each text."""
    return Request("/extras/tokenize/count", {"model": model, "input": text})


SERVER = Server(
    name="llama-cpp-python", text=text_request, read_text=field("count"), counts_empty=True
)
