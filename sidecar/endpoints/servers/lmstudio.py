"""LM Studio: nothing counts over HTTP; its own SDK does, over a WebSocket."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from typing import Any
from urllib.parse import urlsplit

import msgspec

from sidecar.endpoints.http import Connection, time_left
from sidecar.endpoints.outcome import Fault
from sidecar.endpoints.servers.base import Listed, Server, entries, positive, whole
from sidecar.models.names import same_model

SDK_SECONDS = 2.0


class _Model(msgspec.Struct):
    id: str = ""
    state: str = ""
    loaded_context_length: int | None = None


async def limit(connection: Connection, model: str, listed: Listed | None) -> int | None:
    """The length that the model was loaded with."""
    del listed
    answer = await connection.get("/api/v0/models")
    for entry in entries(answer, "data", _Model):
        if entry.state == "loaded" and same_model(model, entry.id):
            return positive(entry.loaded_context_length)
    return None


SERVER = Server(name="lmstudio", limit=limit)


def sdk_is_installed() -> bool:
    """Whether the extra `token-sidecar[lmstudio]` is there."""
    return importlib.util.find_spec("lmstudio") is not None


class SdkCounter:
    """Counts by LM Studio's SDK, only of models that are loaded.

    The SDK's client must be entered and left by one task: that task holds it until it is stopped.
    """

    def __init__(self, root: str) -> None:
        self._host = urlsplit(root).netloc
        self._holder: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._opened: asyncio.Future[Any] | None = None

    async def count(self, model: str, text: str) -> int:
        """Tokens in `text`. Raises Fault."""
        try:
            async with asyncio.timeout(min(SDK_SECONDS, time_left())):
                handle = await self._loaded(model)
                return whole(await handle.count_tokens(text))
        except Fault:
            raise
        except Exception as error:  # the SDK's errors have no documented base
            await self.aclose()
            raise _failed(error) from None

    async def aclose(self) -> None:
        """Close the WebSocket."""
        self._stop.set()
        if self._holder is not None:
            await asyncio.wait({self._holder}, timeout=SDK_SECONDS)
            self._holder.cancel()
            self._holder = None

    async def _loaded(self, model: str) -> Any:
        client = await self._client()
        for handle in await client.llm.list_loaded():
            if same_model(model, str(handle.identifier)):
                return handle
        raise Fault("unknown", "LM Studio does not have the model loaded")

    async def _client(self) -> Any:
        if self._opened is None or self._holder is None or self._holder.done():
            self._stop = asyncio.Event()
            self._opened = asyncio.get_running_loop().create_future()
            self._holder = asyncio.create_task(self._hold(self._opened, self._stop))
        client = await asyncio.shield(self._opened)
        if isinstance(client, Fault):
            raise client
        return client

    async def _hold(self, opened: asyncio.Future[Any], stop: asyncio.Event) -> None:
        try:
            lmstudio = await asyncio.to_thread(importlib.import_module, "lmstudio")
            async with lmstudio.AsyncClient(self._host) as client:
                opened.set_result(client)
                await stop.wait()
        except Exception as error:
            if not opened.done():
                opened.set_result(_failed(error))


def _failed(error: Exception) -> Fault:
    return Fault("unreachable", f"LM Studio's SDK failed ({type(error).__name__})")
