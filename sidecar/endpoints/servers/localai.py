"""LocalAI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from sidecar.endpoints.servers.base import Listed, Request, Server, entries, ids
from sidecar.models.names import same_model

if TYPE_CHECKING:
    from sidecar.endpoints.http import Connection


class _Loaded(msgspec.Struct):
    id: str = ""


def text_request(model: str, text: str) -> Request:
    """POST /v1/tokenize: here, unlike elsewhere, under /v1."""
    return Request("/v1/tokenize", {"model": model, "content": text})


async def loaded(connection: Connection, listed: Sequence[Listed]) -> Sequence[Listed]:
    """LocalAI lists what it could load, and loads it when asked: /system has what is loaded."""
    answer = await connection.get("/system")
    names = [model.id for model in entries(answer, "loaded_models", _Loaded)]
    return [model for model in listed if any(same_model(model.id, name) for name in names)]


SERVER = Server(name="localai", text=text_request, read_text=ids, loaded=loaded)
