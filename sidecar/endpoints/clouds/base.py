"""What every vendor in the table has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

from sidecar.endpoints.outcome import Fault

if TYPE_CHECKING:
    from sidecar.endpoints.servers.base import Server

ReadLimit: TypeAlias = Callable[[object], int | None]


def bearer(key: str) -> Mapping[str, str]:
    """The header that most take."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def no_limit(body: object) -> int | None:
    """For vendors that do not report a model's window."""
    del body
    return None


@dataclass(frozen=True)
class Cloud:
    """A vendor: hosts, keys, the GET that shows one model, and how it counts."""

    server: Server
    hosts: tuple[str, ...]
    """A host is the vendor's when it is one of these or a subdomain."""
    headers: Callable[[str], Mapping[str, str]] = bearer
    show: str | None = "/v1/models/{model}"
    """The path of the GET that shows a model; None where there is none."""
    read_limit: ReadLimit = no_limit
    suffixes: tuple[str, ...] = field(default=("/v1",))
    """What may stand at the end of the declared address and is no part of the root."""

    def show_path(self, model: str) -> str | None:
        """The path of the GET that shows `model`.

        Raises Fault for a name with a part that HTTP clients or servers resolve: `..`, `.`, "".
        """
        if not {"", ".", ".."}.isdisjoint(model.split("/")):
            raise Fault("unsupported", "the model's name is none of a vendor's")
        return self.show and self.show.format(model=quote(model, safe="/:"))
