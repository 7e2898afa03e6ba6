"""Answers requests for counts, models and capabilities, and the commands of any editor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any

import msgspec
from lsprotocol import types

from sidecar.counting.count_result import Count, tokens_text
from sidecar.counting.model_list import ModelInfo, choices, search
from sidecar.counting.open_documents import Snapshot
from sidecar.endpoints.outcome import Capability
from sidecar.errors import BadParamsError
from sidecar.server.client import Client
from sidecar.server.methods import (
    CapabilitiesParams,
    CountParams,
    CountResult,
    FitTextParams,
    FitTextResult,
    ModelsParams,
    ProbeParams,
)
from sidecar.server.protocol import Feature
from sidecar.text.document import has_undecoded_bytes
from sidecar.text.printable import message, printable
from sidecar.text.tables import align_columns
from sidecar.workspace.document_budgets import model_of
from sidecar.workspace.services import Services
from sidecar.workspace.views import format_comparison, format_comparison_as_markdown
from sidecar.workspace.workspace import Event, Workspace

PREFIX = "tokenSidecar.server."
"""The first part of the commands' names."""
HEAVIEST_SHOWN = 8


class CountRequests(Feature):
    """Pins documents when a request arrives, so that later edits do not affect it."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.handlers = {"tokens/count": self._count, "tokens/fit": self._fit}

    def _count(self, params: CountParams) -> Awaitable[CountResult] | CountResult:
        _check_params(params)
        if (result := _count_now(self._services, params)) is not None:
            return result
        if params.messages is not None:
            return _count_messages(self._services, params, params.messages)
        return _count_text(self._services, params, _pin(self._services, params))

    def _fit(self, params: FitTextParams) -> Awaitable[FitTextResult]:
        _check_sources(params.text_document, params.text)
        return _fit_text(self._services, params, _pin(self._services, params))


def _check_params(params: CountParams) -> None:
    _check_sources(params.text_document, params.text, params.messages)
    if params.tools is not None and params.messages is None:
        raise BadParamsError("`tools` requires `messages`")
    if _uri_of(params) is None and (params.range or params.ranges):
        raise BadParamsError("range and ranges require textDocument without text")


def _check_sources(document: object, text: object, messages: object = None) -> None:
    if document is None and text is None and messages is None:
        raise BadParamsError("give textDocument, text or, for tokens/count, messages")
    if messages is not None and not (document is None and text is None):
        raise BadParamsError("messages cannot be combined with textDocument or text")


def _model_for(params: CountParams | FitTextParams, workspace: Workspace) -> str:
    """Return the requested model. The default for a document is the model that its status shows."""
    document = params.text_document
    default = workspace.model if document is None else model_of(document.uri, workspace)
    return params.model or default


def _uri_of(params: CountParams | FitTextParams) -> str | None:
    """Return the URI of the document to count, or None if the params contain the text."""
    document = params.text_document
    return document.uri if document is not None and params.text is None else None


def _pin(services: Services, params: CountParams | FitTextParams) -> Snapshot | None:
    """Return the document's current text, to which the positions in the params refer.

    Returns None if the document is not open or not synchronized.
    """
    document = services.documents.get(_uri_of(params) or "")
    if document is None or not document.is_synced:
        return None
    return services.documents.snapshot_of(document)


async def _count_messages(
    services: Services, params: CountParams, messages: list[dict[str, Any]]
) -> CountResult:
    await services.configured.wait()
    workspace = services.roots.default

    async def count_for(model: str | None) -> Count:
        return await services.counts.count_messages(messages, params.tools, model, workspace)

    count = await count_for(params.model)
    models = None if params.models is None else [await count_for(name) for name in params.models]
    return _make_result(count, None, None, models)


async def _read_text(
    services: Services, params: CountParams | FitTextParams, pinned: Snapshot | None
) -> tuple[Snapshot, list[Snapshot], Workspace]:
    uri = _uri_of(params)
    if uri is None:
        await services.configured.wait()
        document = params.text_document
        workspace = services.roots.of_document(document.uri) if document else services.roots.default
        return Snapshot(text=params.text or ""), [], workspace
    await services.configured.wait()
    whole = services.documents.snapshot(uri) if pinned is None else pinned
    spans, span, parts = getattr(params, "ranges", None), params.range, list[Snapshot]()
    snapshot, workspace = whole, services.roots.of_document(uri)
    if spans or span is not None:
        text = services.documents.get(uri)
        if text is None or not whole.is_of(text):  # edited since the request arrived
            text = await services.workers.run(whole.document)
        parts = [Snapshot.part_of(text, part) for part in spans or ()]
        snapshot = whole if span is None else Snapshot.part_of(text, span)
    return snapshot, parts, workspace


def _count_now(services: Services, params: CountParams) -> CountResult | None:
    """Return the document's count, or None if it needs a worker thread or an endpoint."""
    uri = _uri_of(params)
    if uri is None or params.range or params.ranges is not None or params.models is not None:
        return None
    if not services.configured.is_set():
        return None
    snapshot, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
    model = _model_for(params, workspace)
    if not services.windows.is_loaded(model, workspace.settings):
        return None
    count = services.counts.count_if_quick(snapshot, model, workspace)
    return None if count is None else _make_result(count, snapshot.version, None, None)


async def _count_text(
    services: Services, params: CountParams, pinned: Snapshot | None
) -> CountResult:
    snapshot, parts, workspace = await _read_text(services, params, pinned)

    async def count_for(text: Snapshot, model: str) -> Count:
        await asyncio.sleep(0)  # give other messages a turn between many small counts
        return await services.counts.count(text, model, workspace)

    model = _model_for(params, workspace)
    count = await count_for(snapshot, model)
    ranges = [await count_for(part, model) for part in parts]
    models = [await count_for(snapshot, name) for name in params.models or ()]
    return _make_result(
        count,
        snapshot.version,
        None if params.ranges is None else ranges,
        None if params.models is None else models,
    )


def _make_result(
    count: Count, version: int | None, ranges: list[Count] | None, models: list[Count] | None
) -> CountResult:
    fields = msgspec.structs.asdict(count)
    compared = {row.model: row for row in (count, *models)}.values() if models else ()
    text = format_comparison(compared) if compared else ""
    return CountResult(**fields, version=version, ranges=ranges, models=models, text=text)


async def _fit_text(
    services: Services, params: FitTextParams, pinned: Snapshot | None
) -> FitTextResult:
    snapshot, _, workspace = await _read_text(services, params, pinned)
    if has_undecoded_bytes(snapshot.text):
        raise BadParamsError("the text is not UTF-8; reload it with its own encoding")
    model = _model_for(params, workspace)
    fitted, counter = await services.counts.fit(
        snapshot.text, params.max_tokens, params.mode, params.marker, model, workspace.settings
    )
    return FitTextResult(
        **msgspec.structs.asdict(fitted),
        model=model,
        method=counter.method,
        tokenizer=counter.tokenizer,
        error_percent=counter.error_percent,
    )


class Models(Feature):
    """Lists the known models, and those that the workspace uses."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.handlers = {"models/list": self._list}

    async def _list(self, params: ModelsParams) -> list[ModelInfo]:
        services = self._services
        await services.configured.wait()
        workspace = services.find_workspace_or_first(params.workspace)
        describe = services.counts.tokenizers(workspace.settings).describe
        if not params.choices:
            return await services.workers.run(partial(search, params.query, describe))
        declared = services.counts.endpoints(workspace.settings).models()
        spending, model = services.spending(workspace), workspace.model

        def list_choices() -> list[ModelInfo]:
            return choices(params.query, describe, (model, *spending.recent_models(), *declared))

        return await services.workers.run(list_choices)


class Capabilities(Feature):
    """Lists the endpoints' capabilities. Only `capabilities/probe` sends requests to them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.handlers = {"capabilities/list": self._list, "capabilities/probe": self._probe}

    async def _list(self, params: CapabilitiesParams) -> list[Capability]:
        await self._services.configured.wait()
        settings = self._workspace_of(params).settings
        return self._services.counts.endpoints(settings).capabilities()

    async def _probe(self, params: ProbeParams) -> list[Capability]:
        await self._services.configured.wait()
        workspace = self._workspace_of(params)
        capabilities = await self._services.counts.endpoints(workspace.settings).probe(
            params.endpoint, params.model or workspace.model
        )
        self._services.publish(Event("endpoint"))
        return capabilities

    def _workspace_of(self, params: CapabilitiesParams | ProbeParams) -> Workspace:
        if params.workspace is None and params.text_document is not None:
            return self._services.roots.of_document(params.text_document.uri)
        return self._services.find_workspace_or_first(params.workspace)


class Commands(Feature):
    """Runs `workspace/executeCommand`, for editors without a plugin of this project.

    Commands return their result, and also show it as a message.
    """

    def __init__(self, services: Services, client: Client) -> None:
        self._services, self._client = services, client
        self.commands = {
            f"{PREFIX}heaviestSections": self._list_heaviest_sections,
            f"{PREFIX}compareModels": self._compare_models,
        }

    async def _list_heaviest_sections(self, *arguments: Any) -> list[dict[str, Any]]:
        parts = await self._services.count_parts_of_document(_document_argument(arguments))
        rows: list[dict[str, Any]] = [
            {"title": part.part.title, "line": part.part.start_line, "tokens": part.tokens}
            for part in sorted(parts, key=lambda part: -part.tokens)[:HEAVIEST_SHOWN]
        ]
        lines = align_columns(
            [
                (f"{row['tokens']:,}", f"{printable(row['title'])} (line {row['line'] + 1})")
                for row in rows
            ],
            left=0,
        )
        title = "Heaviest sections:" if rows else "This document has no sections."
        self._show_message("\n".join([title, *lines]))
        return rows

    async def _compare_models(self, *arguments: Any) -> str:
        services, uri = self._services, _document_argument(arguments)
        await services.configured.wait()
        snapshot, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
        models = dict.fromkeys((model_of(uri, workspace), *map(str, arguments[1:])))
        counts = [await services.counts.count(snapshot, model, workspace) for model in models]
        rows = [f"{printable(row.model)} {tokens_text(row.tokens, row.method)}" for row in counts]
        self._show_message(", ".join(rows))
        return format_comparison_as_markdown("This document", counts)

    def _show_message(self, text: str) -> None:
        params = types.ShowMessageParams(types.MessageType.Info, message(text))
        self._client.window_show_message(params)


def _document_argument(arguments: tuple[Any, ...]) -> str:
    if not arguments or not isinstance(arguments[0], str):
        raise BadParamsError("the first argument must be the document's URI")
    return arguments[0]
