"""Ollama: it does not count, it reports what it has allocated."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar.endpoints.servers.base import LISTED, Listed, Server, decode, entries, positive
from sidecar.models.names import same_model

if TYPE_CHECKING:
    from sidecar.endpoints.http import Connection

_NUM_CTX = re.compile(r"^[ \t]*num_ctx[ \t]+(\d{1,10})[ \t\r]*$", re.MULTILINE)


class _Running(msgspec.Struct):
    name: str = ""
    model: str = ""
    context_length: int | None = None


class _Show(msgspec.Struct):
    parameters: str | None = None
    model_info: dict[str, Any] | None = None


async def limit(connection: Connection, model: str, listed: Listed | None) -> int | None:
    """What is allocated to the running model, else what it would be given when it is loaded.

    Neither request loads a model.
    """
    del listed
    answer = await connection.get("/api/ps")
    for running in entries(answer, "models", _Running):
        if same_model(model, running.name) or same_model(model, running.model):
            return positive(running.context_length)
    answer = await connection.post("/api/show", {"model": model})
    answered = decode(answer.body, _Show) if answer.status == 200 else None
    return _from_show(answered) if answered else None


def _from_show(answered: _Show) -> int | None:
    """The smaller of the architecture's window and `num_ctx`, which stands in a text of lines."""
    set_in = _NUM_CTX.search(answered.parameters or "")
    windows = [int(set_in[1])] if set_in else []
    for key, value in islice((answered.model_info or {}).items(), LISTED):
        if key.endswith(".context_length") and isinstance(value, int):
            windows.append(value)
    return positive(min(windows)) if windows else None


SERVER = Server(name="ollama", limit=limit, loads_itself=True)
