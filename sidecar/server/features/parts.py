"""The counted parts of an open document, for hints, lenses, symbols and commands."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.parts import CountedPart


async def parts_of(server: SidecarServer, uri: str) -> tuple[CountedPart, ...]:
    """A document's sections or top-level blocks with their tokens, in the order of the text.

    Empty when the document was edited meanwhile: the client asks again.

    Raises:
        RequestError: `unknownDocument`.
    """
    from sidecar.workspace.budgets import model_of
    from sidecar.workspace.parts import counted_parts

    services = server.services
    await services.ready(uri)
    taken, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
    gauge = await services.counts.gauge(taken, model_of(uri, workspace), workspace.settings)
    known = services.parts.get(uri, {})
    parts, now = await services.workers.run(partial(counted_parts, taken, gauge, known))
    if uri not in services.documents or services.documents.snapshot(uri) is not taken:
        return ()
    services.parts[uri] = now
    return parts
