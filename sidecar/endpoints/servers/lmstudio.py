"""LM Studio: nothing counts over HTTP; its own SDK does, over a WebSocket."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from sidecar.endpoints.names import same_model
from sidecar.endpoints.outcome import Fault
from sidecar.endpoints.servers.base import Listed, Server, decode, positive, whole

if TYPE_CHECKING:
    from sidecar.endpoints.http import Connection


class _Model(msgspec.Struct):
    id: str = ""
    state: str = ""
    loaded_context_length: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


async def limit(connection: Connection, model: str, listed: Listed | None) -> int | None:
    """The length that the model was loaded with."""
    del listed
    answer = await connection.get("/api/v0/models")
    models = decode(answer.body, _Models) if answer.status == 200 else None
    for entry in models.data if models else ():
        if entry.state == "loaded" and same_model(model, entry.id):
            return positive(entry.loaded_context_length)
    return None


SERVER = Server(name="lmstudio", limit=limit)


def sdk_is_installed() -> bool:
    """Whether the extra `token-sidecar[lmstudio]` is there."""
    return importlib.util.find_spec("lmstudio") is not None


class SdkCounter:
    """Counts by LM Studio's SDK, only of models that are loaded. One a connection."""

    def __init__(self, root: str) -> None:
        self._host = urlsplit(root).netloc
        self._client: Any = None

    async def count(self, model: str, text: str) -> int:
        """Tokens in `text`. Raises Fault."""
        try:
            handle = await self._loaded(model)
            return whole(await handle.count_tokens(text))
        except Fault:
            raise
        except Exception as error:  # the SDK's errors have no common documented base
            await self.aclose()
            raise Fault("unreachable", f"LM Studio's SDK failed ({type(error).__name__})") from None

    async def aclose(self) -> None:
        """Close the WebSocket."""
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)

    async def _loaded(self, model: str) -> Any:
        if self._client is None:
            lmstudio = await asyncio.to_thread(importlib.import_module, "lmstudio")
            client = lmstudio.AsyncClient(self._host)
            self._client = await client.__aenter__()
        for handle in await self._client.llm.list_loaded():
            if same_model(model, str(handle.identifier)):
                return handle
        raise Fault("unknown", "LM Studio does not have the model loaded")
