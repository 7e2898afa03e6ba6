"""`tokens/count` and `tokens/fit`, on texts, documents and parts of them; `models/list`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar.counting.listing import choices, search
from sidecar.errors import RequestError
from sidecar.server.methods import (
    CountParams,
    CountResult,
    FitTextParams,
    FitTextResult,
    ModelsParams,
)
from sidecar.workspace.documents import Snapshot
from sidecar.workspace.wording import comparison_text

if TYPE_CHECKING:
    from sidecar.counting.count import Count
    from sidecar.counting.listing import ModelInfo
    from sidecar.server.server import SidecarServer
    from sidecar.text.positions import Range
    from sidecar.workspace.services import Services
    from sidecar.workspace.workspace import Workspace


def register(server: SidecarServer) -> None:
    """Register the handlers."""
    services = server.services

    async def count(params: CountParams) -> CountResult:
        _check(params)
        spans = params.range or params.ranges  # they are of the document as it is now
        await services.ready(_uri(params) if spans is None else None)
        if params.messages is not None:
            return await _count_messages(services, params, params.messages)
        return await _count(services, params)

    async def fit(params: FitTextParams) -> FitTextResult:
        await services.ready(_uri(params) if params.range is None else None)
        taken, workspace = _fitted_text(services, params)
        model = params.model or workspace.model
        fitted, measure = await services.counts.fit(
            taken.text, params.max_tokens, params.mode, params.marker, model, workspace.settings
        )
        return FitTextResult(
            **msgspec.structs.asdict(fitted),
            model=model,
            method=measure.method,
            tokenizer=measure.tokenizer,
            error_percent=measure.error_percent,
        )

    async def models(params: ModelsParams) -> list[ModelInfo]:
        await services.configured.wait()
        workspace = services.workspace_or_first(params.workspace)
        describe = services.counts.tokenizers(workspace.settings).describe
        if not params.choices:
            return await services.workers.run(partial(search, params.query, describe))
        declared = services.counts.endpoints(workspace.settings).models()
        spending, model = services.spending(workspace), workspace.model

        def listed() -> list[ModelInfo]:
            return choices(params.query, describe, (model, *spending.models(), *declared))

        return await services.workers.run(listed)

    server.protocol.custom["tokens/count"] = count
    server.protocol.custom["tokens/fit"] = fit
    server.protocol.custom["models/list"] = models


def _check(params: CountParams) -> None:
    sources = (params.text_document, params.text, params.messages)
    if sum(source is not None for source in sources) != 1:
        raise RequestError("badParams", "give exactly one of textDocument, text and messages")
    if params.tools is not None and params.messages is None:
        raise RequestError("badParams", "tools go with messages")
    if params.text_document is None and (params.range or params.ranges):
        raise RequestError("badParams", "range and ranges go with textDocument")


def _uri(params: CountParams | FitTextParams) -> str | None:
    return params.text_document.uri if params.text_document else None


def _fitted_text(services: Services, params: FitTextParams) -> tuple[Snapshot, Workspace]:
    if (params.text is None) == (params.text_document is None):
        raise RequestError("badParams", "give exactly one of textDocument and text")
    if params.text_document is None:
        return Snapshot(text=params.text or ""), services.roots.default
    uri = params.text_document.uri
    return _taken(services, uri, params.range), services.roots.of_document(uri)


def _taken(services: Services, uri: str, span: Range | None) -> Snapshot:
    documents = services.documents
    return documents.snapshot(uri) if span is None else documents.part(uri, span)


async def _count_messages(
    services: Services, params: CountParams, messages: list[dict[str, Any]]
) -> CountResult:
    workspace = services.roots.default

    async def one(model: str | None) -> Count:
        return await services.counts.messages(messages, params.tools, model, workspace)

    count = await one(params.model)
    models = None if params.models is None else [await one(model) for model in params.models]
    return _result(count, None, None, models)


async def _count(services: Services, params: CountParams) -> CountResult:
    """Everything that is asked for is of one snapshot, taken before the first wait."""
    uri = _uri(params)
    if uri is None:
        taken, workspace = Snapshot(text=params.text or ""), services.roots.default
    else:
        taken, workspace = _taken(services, uri, params.range), services.roots.of_document(uri)
    spans = None if params.ranges is None or uri is None else params.ranges
    parts = [services.documents.part(uri or "", span) for span in spans or ()]
    version = taken.version

    async def one(what: Snapshot, model: str | None) -> Count:
        await asyncio.sleep(0)  # let others have the loop between many small counts
        return await services.counts.count(what, model, workspace)

    count = await one(taken, params.model)
    ranges = None if spans is None else [await one(part, params.model) for part in parts]
    models = None if params.models is None else [await one(taken, name) for name in params.models]
    return _result(count, version, ranges, models)


def _result(
    count: Count, version: int | None, ranges: list[Count] | None, models: list[Count] | None
) -> CountResult:
    fields = msgspec.structs.asdict(count)
    # The model that is counted for stands among them, named or not.
    compared = {one.model: one for one in (count, *models)}.values() if models else ()
    text = comparison_text(compared) if compared else ""
    return CountResult(**fields, version=version, ranges=ranges, models=models, text=text)
