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
    from sidecar.workspace.parts import counted_parts

    services = server.services
    await services.configured.wait()
    document, workspace = services.document(uri), services.roots.of_document(uri)
    tokenizer = services.tokenizers(workspace).for_model(workspace.model)
    version = document.version
    work = partial(counted_parts, document.text, uri, document.language_id, tokenizer)
    parts = await services.counting.run(work)
    return parts if document.version == version else ()
