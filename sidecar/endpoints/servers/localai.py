"""LocalAI."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sidecar.endpoints.names import same_model
from sidecar.endpoints.servers.base import Listed, Request, Server, decode, ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.endpoints.http import Connection


class _Loaded(msgspec.Struct):
    id: str = ""


class _System(msgspec.Struct):
    loaded_models: list[_Loaded] | None = None


def text_request(model: str, text: str) -> Request:
    """POST /v1/tokenize: here, unlike elsewhere, under /v1."""
    return Request("/v1/tokenize", {"model": model, "content": text})


async def loaded(connection: Connection, listed: Sequence[Listed]) -> Sequence[Listed]:
    """LocalAI lists what it could load, and loads what it is asked for: /system tells which are."""
    answer = await connection.get("/system")
    system = decode(answer.body, _System) if answer.status == 200 else None
    names = [model.id for model in (system.loaded_models or [] if system else [])]
    return [model for model in listed if any(same_model(model.id, name) for name in names)]


SERVER = Server(name="localai", text=text_request, read_text=ids, loaded=loaded)
