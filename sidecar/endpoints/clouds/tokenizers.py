"""Vendors that count texts alone: Cohere and xAI."""

from __future__ import annotations

from sidecar.endpoints.clouds.base import Cloud, reported
from sidecar.endpoints.servers.base import Request, Server, ids


def cohere_request(model: str, text: str) -> Request:
    """POST /v1/tokenize, of at most 65,536 characters."""
    return Request("/v1/tokenize", {"model": model, "text": text})


def xai_request(model: str, text: str) -> Request:
    """POST /v1/tokenize-text."""
    return Request("/v1/tokenize-text", {"model": model, "text": text})


def _token_ids(body: object) -> int:
    return ids(body, "token_ids")


COHERE = Cloud(
    server=Server(name="cohere", text=cohere_request, read_text=ids),
    hosts=("api.cohere.com", "api.cohere.ai"),
    read_limit=reported("context_length"),
    suffixes=("/v1", "/v2", "/compatibility/v1"),
)
XAI = Cloud(
    server=Server(name="xai", text=xai_request, read_text=_token_ids),
    hosts=("api.x.ai",),
)
