"""Ollama: it does not count, it tells what it has allocated."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar.endpoints.names import same_model
from sidecar.endpoints.servers.base import Listed, Server, decode, positive

if TYPE_CHECKING:
    from sidecar.endpoints.http import Connection

_NUM_CTX = re.compile(r"^\s*num_ctx\s+(\d+)\s*$", re.MULTILINE)


class _Running(msgspec.Struct):
    name: str = ""
    model: str = ""
    context_length: int | None = None


class _Processes(msgspec.Struct):
    models: list[_Running] = []


class _Show(msgspec.Struct):
    parameters: str | None = None
    model_info: dict[str, Any] | None = None


async def limit(connection: Connection, model: str, listed: Listed | None) -> int | None:
    """What is allocated to the running model, else what it would be given when it is loaded.

    Neither request loads a model.
    """
    del listed
    answer = await connection.get("/api/ps")
    processes = decode(answer.body, _Processes) if answer.status == 200 else None
    for running in processes.models if processes else ():
        if same_model(model, running.name) or same_model(model, running.model):
            return positive(running.context_length)
    answer = await connection.post("/api/show", {"model": model})
    shown = decode(answer.body, _Show) if answer.status == 200 else None
    return _from_show(shown) if shown else None


def _from_show(shown: _Show) -> int | None:
    """The smaller of the architecture's window and `num_ctx`, which stands in a text of lines."""
    set_in = _NUM_CTX.search(shown.parameters or "")
    windows = [int(set_in[1])] if set_in else []
    for key, value in (shown.model_info or {}).items():
        if key.endswith(".context_length") and isinstance(value, int):
            windows.append(value)
    return positive(min(windows)) if windows else None


SERVER = Server(name="ollama", limit=limit)
