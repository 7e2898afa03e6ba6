"""Tests that closing a root folder releases all of its state."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

from tests.protocol.client import Client

TURN = {"role": "user", "content": "hello world"}


async def test_closed_folder_drops_its_conversations(bare: Client, tmp_path: Path) -> None:
    """A server may run for weeks while folders are opened and closed."""
    uri = tmp_path.as_uri()
    await bare.initialize(root=uri)
    bare.ignore("status/update", "context/warning")
    await bare.request("context/append", {"workspace": uri, "session": "a", "turns": [TURN]})
    await bare.request("context/fit", {"workspace": uri, "session": "a", "maxTokens": 5})
    await bare.request("context/sessions", {"workspace": uri, "all": True})
    await bare.request("cost/detail", {"workspace": uri})
    gone = weakref.ref(bare.server.services.roots.find(uri))
    folders = {"added": [], "removed": [{"uri": uri, "name": "x"}]}
    bare.notify("workspace/didChangeWorkspaceFolders", {"event": folders})
    async with asyncio.timeout(60):
        # Work that started before the folder was closed is finished first.
        while gone() is not None:
            await asyncio.sleep(0.05)
            gc.collect()


async def test_late_request_does_not_restore_a_closed_folder(bare: Client, tmp_path: Path) -> None:
    uri = tmp_path.as_uri()
    await bare.initialize(root=uri)
    services = bare.server.services
    workspace = services.roots.find(uri)
    folders = {"added": [], "removed": [{"uri": uri, "name": "x"}]}
    bare.notify("workspace/didChangeWorkspaceFolders", {"event": folders})
    services.conversations(workspace)
    gone = weakref.ref(workspace)
    del workspace
    async with asyncio.timeout(60):
        while gone() is not None:
            await asyncio.sleep(0.05)
            gc.collect()
