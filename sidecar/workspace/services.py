"""What all workspaces of one server process share, handed to the features by `create_server`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sidecar.context.window import Limit, Window, resolve_limit
from sidecar.counting import catalogue
from sidecar.counting.count import Count, Measure, Tokenizer
from sidecar.counting.tokenizers import Tokenizers
from sidecar.workspace.counting import Counting
from sidecar.workspace.errors import RequestError
from sidecar.workspace.roots import Roots

if TYPE_CHECKING:
    from sidecar.config.settings import TokenizerFile
    from sidecar.text.document import TextDocument
    from sidecar.text.positions import Encoding
    from sidecar.workspace.workspace import Workspace


@dataclass(eq=False)
class Services:
    """Roots, open documents, tokenizers, and the pool that counts."""

    roots: Roots = field(default_factory=Roots)
    counting: Counting = field(default_factory=Counting)
    documents: dict[str, TextDocument] = field(default_factory=dict)
    encoding: Encoding = "utf-16"
    configured: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the settings of every root have been read."""
    _tokenizers: dict[tuple[TokenizerFile, ...], Tokenizers] = field(default_factory=dict)

    def document(self, uri: str) -> TextDocument:
        """An open document.

        Raises:
            RequestError: `unknownDocument`.
        """
        if uri not in self.documents:
            raise RequestError("unknownDocument", "the document is not open in this server")
        return self.documents[uri]

    def tokenizers(self, workspace: Workspace) -> Tokenizers:
        """The tokenizers of a workspace: shared by all that name the same files."""
        settings = workspace.settings
        if settings.tokenizers not in self._tokenizers:
            made = Tokenizers(settings.tokenizers, settings.tokenize.estimator)
            self._tokenizers[settings.tokenizers] = made
        return self._tokenizers[settings.tokenizers]

    async def count_document(
        self, document: TextDocument, model: str | None, workspace: Workspace
    ) -> Count:
        """The count of a document as it is when the counting ends."""
        name = model or workspace.model
        tokenizer = self.tokenizers(workspace).for_model(name)
        tokens = await self.counting.document(document, tokenizer)
        return self.to_count(_measure(tokens, tokenizer), name, document.characters, workspace)

    def count_document_now(self, document: TextDocument, workspace: Workspace) -> Count | None:
        """The same for the workspace's model if it takes under a millisecond, else None."""
        tokenizer = self.tokenizers(workspace).for_model(workspace.model)
        tokens = self.counting.document_now(document, tokenizer)
        if tokens is None:
            return None
        measure = _measure(tokens, tokenizer)
        return self.to_count(measure, workspace.model, document.characters, workspace)

    def guess_document(self, document: TextDocument, workspace: Workspace) -> Count:
        """What to show at once while a big document is counted: scaled up from a sample."""
        tokenizer = self.tokenizers(workspace).for_model(workspace.model)
        tokens = self.counting.guess(document, tokenizer)
        measure = Measure(tokens, "estimate", tokenizer.name, None)
        return self.to_count(measure, workspace.model, document.characters, workspace)

    async def count_text(self, text: str, model: str | None, workspace: Workspace) -> Count:
        """The count of a text; an empty one is 0, exact, for every model."""
        name = model or workspace.model
        tokenizer = self.tokenizers(workspace).for_model(name)
        tokens = await self.counting.text(text, tokenizer)
        return self.to_count(_measure(tokens, tokenizer), name, len(text), workspace)

    def limit_of(self, model: str, workspace: Workspace) -> Limit | None:
        """The model's window; None until the catalogue has been loaded."""
        if not catalogue.loaded():
            return None
        return resolve_limit(
            catalogue=catalogue.window_of(model), setting=workspace.settings.context.limit
        )

    def to_count(
        self, measure: Measure, model: str, characters: int, workspace: Workspace
    ) -> Count:
        """The public count: a number of tokens put beside the model's usable window."""
        limit = self.limit_of(model, workspace)
        window = None if limit is None else Window(limit, workspace.settings.context.reserve)
        return Count(
            tokens=measure.tokens,
            method=measure.method,
            tokenizer=measure.tokenizer,
            model=model,
            error_percent=measure.error_percent,
            characters=characters,
            limit=None if limit is None else limit.tokens,
            percent=None if window is None else window.percent(measure.tokens),
        )


def _measure(tokens: int, tokenizer: Tokenizer) -> Measure:
    if tokens == 0:
        return Measure(0, "exact", tokenizer.name, 0.0)
    return Measure(tokens, tokenizer.method, tokenizer.name, tokenizer.error_percent)
