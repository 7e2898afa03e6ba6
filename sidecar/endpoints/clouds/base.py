"""What every vendor in the table has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import quote

from sidecar.endpoints.outcome import Fault
from sidecar.endpoints.servers.base import MOST_TOKENS, Server

ReadLimit: TypeAlias = Callable[[object], int | None]


def bearer(key: str) -> Mapping[str, str]:
    """The header that most take."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def reported(*names: str) -> ReadLimit:
    """Reads a model's window from the first of these fields that holds one; without any, none."""

    def read(body: object) -> int | None:
        found = [body.get(name) for name in names] if isinstance(body, Mapping) else []
        return next(filter(None, map(_window, found)), None)

    return read


def _window(value: object) -> int | None:
    """Tokens, which Cohere writes as a fraction; None for what can be none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 1 <= value <= MOST_TOKENS else None


_UNREPORTED = reported()


@dataclass(frozen=True)
class Cloud:
    """A vendor: hosts, keys, the GET that shows one model, and how it counts."""

    server: Server
    hosts: tuple[str, ...]
    """A host is the vendor's when it is one of these or a subdomain."""
    headers: Callable[[str], Mapping[str, str]] = bearer
    show: str | None = "/v1/models/{model}"
    """The path of the GET that shows a model; None where there is none."""
    read_limit: ReadLimit = _UNREPORTED
    suffixes: tuple[str, ...] = field(default=("/v1",))
    """What may stand at the end of the declared address and is no part of the root."""

    def show_path(self, model: str) -> str | None:
        """The path of the GET that shows `model`.

        Raises Fault for a name with a part that HTTP clients or servers resolve: `..`, `.`, "".
        """
        if not {"", ".", ".."}.isdisjoint(model.split("/")):
            raise Fault("unsupported", "the model's name is none of a vendor's")
        return self.show and self.show.format(model=quote(model, safe="/:"))
