"""Counts with LM Studio's SDK over a WebSocket, because LM Studio cannot count over HTTP."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from typing import Any
from urllib.parse import urlsplit

from sidecar.endpoints.http import time_left
from sidecar.endpoints.outcome import EndpointError
from sidecar.endpoints.servers import token_count
from sidecar.models.names import same_model

SDK_SECONDS = 2.0


def sdk_is_installed() -> bool:
    """Return whether the `token-sidecar[lmstudio]` extra is installed."""
    return importlib.util.find_spec("lmstudio") is not None


class SdkCounter:
    """Counts with LM Studio's SDK, but only for models that are in memory.

    The same task must open and close the SDK's client, so one task keeps it open until `aclose`.
    """

    def __init__(self, root: str) -> None:
        self._host = urlsplit(root).netloc
        self._holder: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._opened: asyncio.Future[Any] | None = None

    async def count(self, model: str, text: str) -> int:
        """Return the text's token count.

        Raises:
            EndpointError: The model is not in memory, or the SDK has failed.
        """
        try:
            async with asyncio.timeout(min(SDK_SECONDS, time_left())):
                handle = await self._loaded_model(model)
                return token_count(await handle.count_tokens(text))
        except EndpointError:
            raise
        except Exception as error:  # the SDK's errors have no documented base class
            await self.aclose()
            raise _to_endpoint_error(error) from None

    async def aclose(self) -> None:
        self._stop.set()
        if self._holder is not None:
            await asyncio.wait({self._holder}, timeout=SDK_SECONDS)
            self._holder.cancel()
            self._holder = None

    async def _loaded_model(self, model: str) -> Any:
        client = await self._get_client()
        for handle in await client.llm.list_loaded():
            if same_model(model, str(handle.identifier)):
                return handle
        raise EndpointError("unknown", "LM Studio does not have the model loaded")

    async def _get_client(self) -> Any:
        if self._opened is None or self._holder is None or self._holder.done():
            self._stop = asyncio.Event()
            self._opened = asyncio.get_running_loop().create_future()
            self._holder = asyncio.create_task(self._hold(self._opened, self._stop))
        client = await asyncio.shield(self._opened)
        if isinstance(client, EndpointError):
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
                opened.set_result(_to_endpoint_error(error))


def _to_endpoint_error(error: Exception) -> EndpointError:
    return EndpointError("unreachable", f"LM Studio's SDK failed ({type(error).__name__})")
