"""Vendors that count texts alone: Cohere and xAI."""

from __future__ import annotations

import msgspec

from sidecar.endpoints.clouds.base import Cloud
from sidecar.endpoints.servers.base import Request, Server, decode, ids, positive


class _Model(msgspec.Struct):
    context_length: int | float | None = None


def cohere_request(model: str, text: str) -> Request:
    """POST /v1/tokenize, of at most 65,536 characters."""
    return Request("/v1/tokenize", {"model": model, "text": text})


def xai_request(model: str, text: str) -> Request:
    """POST /v1/tokenize-text."""
    return Request("/v1/tokenize-text", {"model": model, "text": text})


def _token_ids(body: object) -> int:
    return ids(body, "token_ids")


def _cohere_limit(body: object) -> int | None:
    model = decode(body, _Model)
    return positive(int(model.context_length)) if model and model.context_length else None


COHERE = Cloud(
    server=Server(name="cohere", text=cohere_request, read_text=ids),
    hosts=("api.cohere.com", "api.cohere.ai"),
    read_limit=_cohere_limit,
    suffixes=("/v1", "/v2", "/compatibility/v1"),
)
XAI = Cloud(
    server=Server(name="xai", text=xai_request, read_text=_token_ids),
    hosts=("api.x.ai",),
)
