"""What all workspaces of one server process share, handed to the features by `create_server`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar.context.window import Limit, Window, resolve_limit
from sidecar.counting import catalogue
from sidecar.counting.count import Count, Measure, Tokenizer
from sidecar.counting.engines import names
from sidecar.counting.tokenizers import Tokenizers
from sidecar.endpoints.outcome import EndpointCount, Miss
from sidecar.workspace.counting import Counting
from sidecar.workspace.errors import RequestError
from sidecar.workspace.roots import Roots
from sidecar.workspace.spending import Spending
from sidecar.workspace.verdicts import findings, relative_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sidecar.budget.finding import Finding
    from sidecar.counting.calibration import DocumentCalibration
    from sidecar.endpoints.registry import Endpoints
    from sidecar.text.document import TextDocument
    from sidecar.text.pieces import Piece
    from sidecar.text.positions import Encoding
    from sidecar.workspace.state import State
    from sidecar.workspace.sums import SumCounts
    from sidecar.workspace.verdicts import Snapshot
    from sidecar.workspace.workspace import Workspace

DOCUMENT_SECONDS = 0.3
"""How long a count of a document may wait for an endpoint; its number follows by status."""
TEXT_SECONDS = 2.0


class Counted(msgspec.Struct, frozen=True):
    """A document's count, and the version that it is of."""

    count: Count
    version: int | None


@dataclass(eq=False)
class Services:
    """Roots, open documents, tokenizers, endpoints, state, and the pool that counts."""

    roots: Roots = field(default_factory=Roots)
    counting: Counting = field(default_factory=Counting)
    documents: dict[str, TextDocument] = field(default_factory=dict)
    encoding: Encoding = "utf-16"
    configured: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the settings of every root have been read."""
    _tokenizers: dict[Any, Tokenizers] = field(default_factory=dict)
    _endpoints: dict[Any, Endpoints] = field(default_factory=dict)
    _learned: dict[str, DocumentCalibration] = field(default_factory=dict)
    _sums_lock: threading.Lock = field(default_factory=threading.Lock)
    _priced: bool = False
    _looked_up: set[Any] = field(default_factory=set)

    @cached_property
    def _sums(self) -> SumCounts:
        from sidecar.workspace.sums import SumCounts

        return SumCounts()

    @cached_property
    def state(self) -> State:
        """The user's state folder."""
        from sidecar.workspace.state import State

        return State()

    def document(self, uri: str) -> TextDocument:
        """An open document.

        Raises:
            RequestError: `unknownDocument`.
        """
        if uri not in self.documents:
            raise RequestError("unknownDocument", "the document is not open in this server")
        return self.documents[uri]

    def workspace(self, named: str | None) -> Workspace:
        """What a request names: `Roots.find`; or by an open document, which may be in no root.

        Raises:
            RequestError: `badParams`.
        """
        document = self.documents.get(named or "")
        return self.roots.of_document(document.uri) if document else self.roots.find(named)

    def closed(self, uri: str) -> None:
        """Forget a document."""
        self.documents.pop(uri, None)
        self._learned.pop(uri, None)

    def tokenizers(self, workspace: Workspace) -> Tokenizers:
        """The tokenizers of a workspace: shared by all that name the same files."""
        settings = workspace.settings
        key = (settings.tokenizers, settings.tokenize.estimator)
        if key not in self._tokenizers:
            self._tokenizers[key] = Tokenizers(*key)
        return self._tokenizers[key]

    def load_tokenizers(self) -> None:
        """Load what counts for each root's model: some tens of milliseconds, for a worker."""
        for workspace in self.roots:
            self.counting.load(self.tokenizers(workspace).for_model(workspace.model))

    def endpoints(self, workspace: Workspace) -> Endpoints:
        """The model servers that the user declared: shared by all with the same settings."""
        settings = workspace.settings
        key = (settings.endpoints, settings.tokenize.use_endpoint)
        if key not in self._endpoints:
            from sidecar.endpoints.registry import Endpoints

            self._endpoints[key] = Endpoints(*key)
        return self._endpoints[key]

    async def aclose(self) -> None:
        """Give up counting, close connections and write what was learned."""
        self.counting.stop()
        for endpoints in self._endpoints.values():
            await endpoints.aclose()
        if "state" in self.__dict__:
            await self.counting.run(self.state.close)

    # -- counting ---------------------------------------------------------------------------

    async def count_document(
        self, document: TextDocument, model: str | None, workspace: Workspace
    ) -> Counted:
        """The count of a document as it is when the counting ends, waiting for an endpoint for
        300 ms at most."""
        name = model or workspace.model
        await self.look_up(name, workspace)
        tokenizer = self.tokenizers(workspace).for_model(name)
        if self.asks_endpoint(name, tokenizer, workspace) and document.characters:
            found = await self.ask_for_document(document, name, workspace, DOCUMENT_SECONDS)
            if isinstance(found, Counted):
                return found
            local = await self.count_here(document, workspace, name)
            return self._noted(local, found)
        return await self.count_here(document, workspace, name)

    async def count_here(
        self, document: TextDocument, workspace: Workspace, model: str | None = None
    ) -> Counted:
        """The local count of a document as it is when the counting ends."""
        name = model or workspace.model
        await self.look_up(name, workspace)
        tokenizer = self.tokenizers(workspace).for_model(name)
        tokens, version, characters = await self.counting.document(document, tokenizer)
        measure = self._corrected(document, _measure(tokens, tokenizer))
        return Counted(self.to_count(measure, name, characters, workspace), version)

    async def look_up(self, model: str, workspace: Workspace) -> None:
        """Have window and price of a model that is new here looked up off the event loop."""
        key = (model, workspace.settings.prices)
        if key in self._looked_up:
            return
        if not self._priced:  # the list is not there yet: only make sure that it can be counted
            await self.counting.run(partial(self.tokenizers(workspace).for_model, model))
            return
        await self.counting.run(partial(self._price, model, workspace))
        if len(self._looked_up) > 4096:  # random names must not fill the memory
            self._looked_up.clear()
        self._looked_up.add(key)

    def _price(self, model: str, workspace: Workspace) -> None:
        self.tokenizers(workspace).for_model(model)
        catalogue.window_of(model)
        self.state.book(workspace.settings).estimate(model, 1)

    async def ask_for_document(
        self, document: TextDocument, model: str, workspace: Workspace, seconds: float
    ) -> Counted | Miss:
        """The endpoint's count of the document as it is now; teaches the buffer's calibration."""
        from sidecar.endpoints.registry import CHUNK_CHARACTERS

        version, text = document.version, document.text
        found = await self.endpoints(workspace).count_text(model, text, seconds, CHUNK_CHARACTERS)
        if isinstance(found, Miss):
            return found
        tokenizer = self.tokenizers(workspace).for_model(model)
        estimate = await self.counting.text(text, tokenizer)
        from sidecar.counting.calibration import DocumentCalibration

        learned = self._learned.setdefault(document.uri, DocumentCalibration())
        learned.learn(estimate, found.tokens)
        measure = Measure(found.tokens, "endpoint", f"{found.server}:{found.model}", 0.0)
        return Counted(self.to_count(measure, model, len(text), workspace), version)

    def asks_endpoint(self, model: str, tokenizer: Tokenizer, workspace: Workspace) -> bool:
        """Whether an endpoint knows better than what counts here: not where the engine is the
        model's own, shipped or named by the user."""
        if not _may_ask(workspace) or not self.endpoints(workspace).serves(model):
            return False
        return tokenizer.name not in names() and not self.tokenizers(workspace).is_users(model)

    def count_document_now(self, document: TextDocument, workspace: Workspace) -> Count | None:
        """The local count for the workspace's model if it takes under a millisecond, else None."""
        tokenizer = self.tokenizers(workspace).for_model(workspace.model)
        tokens = self.counting.document_now(document, tokenizer)
        if tokens is None:
            return None
        measure = self._corrected(document, _measure(tokens, tokenizer))
        return self.to_count(measure, workspace.model, document.characters, workspace)

    def guess_document(self, document: TextDocument, workspace: Workspace) -> Count:
        """What to show at once while a big document is counted: scaled up from a sample."""
        tokenizer = self.tokenizers(workspace).for_model(workspace.model)
        tokens = self.counting.guess(document, tokenizer)
        measure = Measure(tokens, "estimate", tokenizer.name, None)
        return self.to_count(measure, workspace.model, document.characters, workspace)

    async def count_text(self, text: str, model: str | None, workspace: Workspace) -> Count:
        """The count of a text; an empty one is 0, exact, for every model, and asks nobody."""
        name = model or workspace.model
        await self.look_up(name, workspace)
        tokenizer = self.tokenizers(workspace).for_model(name)
        miss = None
        if text and self.asks_endpoint(name, tokenizer, workspace):
            found = await self.endpoints(workspace).count_text(name, text, TEXT_SECONDS)
            if isinstance(found, EndpointCount):
                return self._by_endpoint(found, name, len(text), workspace)
            miss = found
        tokens = await self.counting.text(text, tokenizer)
        count = self.to_count(_measure(tokens, tokenizer), name, len(text), workspace)
        return count if miss is None else msgspec.structs.replace(count, note=miss.reason)

    async def count_messages(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        model: str | None,
        workspace: Workspace,
    ) -> Count:
        """A whole chat with its tools: by the endpoint's own template, else by formula."""
        from sidecar.counting.messages import count_messages

        name = model or workspace.model
        await self.look_up(name, workspace)
        characters = sum(_characters(message) for message in messages)
        note = None
        if (messages or tools) and _may_ask(workspace) and self.endpoints(workspace).serves(name):
            asked = self.endpoints(workspace).count_chat(name, messages, tools, TEXT_SECONDS)
            found = await asked
            if isinstance(found, EndpointCount):
                return self._by_endpoint(found, name, characters, workspace)
            note = found.reason
        tokenizer = self.tokenizers(workspace).for_model(name)
        work = partial(count_messages, messages, tools, name, tokenizer)
        measure = await self.counting.run(work)
        count = self.to_count(measure, name, characters, workspace)
        return msgspec.structs.replace(count, note=note)

    def _by_endpoint(
        self, found: EndpointCount, model: str, characters: int, workspace: Workspace
    ) -> Count:
        measure = Measure(found.tokens, "endpoint", f"{found.server}:{found.model}", 0.0)
        return self.to_count(measure, model, characters, workspace)

    def _noted(self, counted: Counted, miss: Miss) -> Counted:
        count = msgspec.structs.replace(counted.count, note=miss.reason)
        return Counted(count, counted.version)

    def _corrected(self, document: TextDocument, measure: Measure) -> Measure:
        """An estimate by what the endpoint said of this very buffer, where it said anything."""
        learned = self._learned.get(document.uri)
        if learned is None or not learned.samples or measure.method in ("exact", "endpoint"):
            return measure
        tokens = learned.predict(measure.tokens)
        return Measure(tokens, "calibrated", measure.tokenizer, learned.error_percent)

    # -- budgets ----------------------------------------------------------------------------

    def buffers(self, workspace: Workspace, taken: Snapshot) -> dict[str, Sequence[Piece]]:
        """The other open documents of a workspace by name, where a budget is for several files."""
        if not any(rule.budget.sum for rule in taken.rules):
            return {}
        return {
            relative_name(workspace, uri): document.pieces
            for uri, document in self.documents.items()
            if self.roots.of_document(uri) is workspace
        }

    def verdicts(
        self, taken: Snapshot, workspace: Workspace, buffers: Mapping[str, Sequence[Piece]]
    ) -> list[Finding]:
        """What budgets say of a snapshot. Blocking: for a worker thread."""
        tokenizers, together = self.tokenizers(workspace), {}
        if workspace.path is not None and any(rule.budget.sum for rule in taken.rules):
            with self._sums_lock:
                together = self._sums.together(
                    workspace.rules,
                    taken.rules,
                    taken.name,
                    workspace.path,
                    buffers,
                    tokenizers,
                    taken.model,
                )
        return findings(taken, tokenizers, together)

    # -- windows ----------------------------------------------------------------------------

    def limit_of(self, model: str, workspace: Workspace) -> Limit | None:
        """The model's window; None until the catalogue has been loaded."""
        endpoint = self.endpoints(workspace).known_limit(model) if _may_ask(workspace) else None
        if not catalogue.loaded() and endpoint is None:
            return None
        talk = workspace.known_talk
        own = talk is not None and model == talk.current_model
        return resolve_limit(
            request=talk.current_limit if talk is not None and own else None,
            endpoint=endpoint,
            catalogue=catalogue.known_window(model),
            setting=workspace.settings.context.limit,
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
            limit_source=None if limit is None else limit.source,
            percent=None if window is None else window.percent(measure.tokens),
            input_cost_usd=self.input_cost(model, measure.tokens, workspace),
        )

    def load_prices(self) -> None:
        """Load windows and prices: most of a second, so on a worker thread."""
        catalogue.warm()
        for workspace in self.roots:
            self._price(workspace.model, workspace)
            self._looked_up.add((workspace.model, workspace.settings.prices))
            self._recall(workspace)
        self._priced = True

    def _recall(self, workspace: Workspace) -> None:
        """What earlier runs have recorded of a workspace, for its status."""
        from sidecar.cost.ledger import FILE_NAME, LedgerError

        if not (self.state.folder / FILE_NAME).exists():
            return
        with contextlib.suppress(LedgerError):
            self.spending(workspace).refresh("")

    def spending(self, workspace: Workspace) -> Spending:
        """What a workspace spends; blocking, for worker threads."""
        return Spending(self.state.book(workspace.settings), workspace)

    def cost_of_session(self, workspace: Workspace, session: str) -> float | None:
        """USD recorded for a session, as far as this process knows."""
        return workspace.costs.sessions.get(session)

    def input_cost(self, model: str, tokens: int, workspace: Workspace) -> float | None:
        """USD of so many uncached input tokens; None where no price is known, or not yet."""
        if (model, workspace.settings.prices) not in self._looked_up:
            return None
        cost = self.state.book(workspace.settings).estimate(model, tokens)
        return None if cost is None else float(cost)


def _measure(tokens: int, tokenizer: Tokenizer) -> Measure:
    if tokens == 0:
        return Measure(0, "exact", tokenizer.name, 0.0)
    return Measure(tokens, tokenizer.method, tokenizer.name, tokenizer.error_percent)


def _may_ask(workspace: Workspace) -> bool:
    """Whether the user declared an endpoint and switched endpoints on."""
    settings = workspace.settings
    return bool(settings.tokenize.use_endpoint and settings.endpoints)


def _characters(message: dict[str, Any]) -> int:
    """Code points of a message's texts."""
    from sidecar.counting.content import read_message

    return sum(len(text) for text in read_message(message).texts)
