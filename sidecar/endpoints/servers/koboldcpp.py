"""KoboldCpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sidecar.endpoints.servers.base import Listed, Request, Server, decode, field, positive

if TYPE_CHECKING:
    from sidecar.endpoints.http import Connection


class _Value(msgspec.Struct):
    value: int | None = None


def text_request(model: str, text: str) -> Request:
    """POST /api/extra/tokencount without the begin-of-text token."""
    del model
    return Request("/api/extra/tokencount", {"prompt": text, "special": False})


async def limit(connection: Connection, model: str, listed: Listed | None) -> int | None:
    """What is allocated, not what the client-facing setting says."""
    del model, listed
    answer = await connection.get("/api/extra/true_max_context_length")
    found = decode(answer.body, _Value) if answer.status == 200 else None
    return positive(found.value) if found else None


SERVER = Server(
    name="koboldcpp", text=text_request, read_text=field("value"), limit=limit, counts_empty=True
)
