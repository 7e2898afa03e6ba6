"""`tokens/count` and `tokens/fit`, on texts, documents and parts of them; `models/list`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sidecar.counting import fit as fitting
from sidecar.counting.catalogue import choices, search
from sidecar.server.messages import (
    CountParams,
    CountResult,
    FitTextParams,
    FitTextResult,
    ModelsParams,
)
from sidecar.workspace.errors import RequestError
from sidecar.workspace.wording import comparison_text

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from sidecar.counting.catalogue import ModelInfo
    from sidecar.counting.count import Count
    from sidecar.server.server import SidecarServer
    from sidecar.text.document import TextDocument
    from sidecar.text.positions import Range
    from sidecar.workspace.services import Services
    from sidecar.workspace.workspace import Workspace


def register(server: SidecarServer) -> None:
    """Register the handlers."""
    services = server.services

    async def count(params: CountParams) -> CountResult:
        _check(params)
        await services.configured.wait()
        if params.text_document is not None:
            return await _count_document(services, params, params.text_document.uri)
        if params.messages is not None:
            return await _count_messages(services, params, params.messages)
        return await _count_text(services, params, params.text or "")

    async def fit(params: FitTextParams) -> FitTextResult:
        await services.configured.wait()
        text, workspace = _text_of(services, params)
        model = params.model or workspace.model
        tokenizer = services.tokenizers(workspace).for_model(model)
        work = partial(fitting.fit, text, params.max_tokens, params.mode, tokenizer, params.marker)
        fitted = await services.counting.run(work)
        return FitTextResult(
            **msgspec.structs.asdict(fitted),
            model=model,
            method=tokenizer.method,
            tokenizer=tokenizer.name,
            error_percent=tokenizer.error_percent,
        )

    async def models(params: ModelsParams) -> list[ModelInfo]:
        await services.configured.wait()
        describe = services.tokenizers(services.roots.default).describe
        look = choices if params.choices else search
        return await services.counting.run(partial(look, params.query, describe))

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


def _text_of(services: Services, params: FitTextParams) -> tuple[str, Workspace]:
    if (params.text is None) == (params.text_document is None):
        raise RequestError("badParams", "give exactly one of textDocument and text")
    if params.text is not None:
        return params.text, services.roots.default
    uri = params.text_document.uri if params.text_document else ""
    document = services.document(uri)
    text = document.text if params.range is None else _slice(document, params.range)
    return text, services.roots.of_document(uri)


async def _count_text(services: Services, params: CountParams, text: str) -> CountResult:
    workspace = services.roots.default
    count = await services.count_text(text, params.model, workspace)
    models = await _each_model(services, params, text, workspace)
    return _result(count, None, None, models)


async def _count_messages(
    services: Services, params: CountParams, messages: list[dict[str, Any]]
) -> CountResult:
    workspace = services.roots.default
    count = await services.count_messages(messages, params.tools, params.model, workspace)
    models = None
    if params.models is not None:
        models = [
            await services.count_messages(messages, params.tools, model, workspace)
            for model in params.models
        ]
    return _result(count, None, None, models)


async def _count_document(services: Services, params: CountParams, uri: str) -> CountResult:
    document, workspace = services.document(uri), services.roots.of_document(uri)
    # Ranges are cut out before the first wait: they and the version belong together.
    parts = [_slice(document, span) for span in params.ranges or []]
    target: str | TextDocument = document
    version = document.version
    if params.range is not None:
        target = _slice(document, params.range)
        count = await services.count_text(target, params.model, workspace)
    else:
        counted = await services.count_document(document, params.model, workspace)
        count, version = counted.count, counted.version
    ranges = [await _yielding(services.count_text(part, params.model, workspace)) for part in parts]
    models = await _each_model(services, params, target, workspace)
    return _result(count, version, ranges if params.ranges is not None else None, models)


async def _each_model(
    services: Services, params: CountParams, target: str | TextDocument, workspace: Workspace
) -> list[Count] | None:
    if params.models is None:
        return None
    counts: list[Count] = []
    for model in params.models:
        if isinstance(target, str):
            counts.append(await _yielding(services.count_text(target, model, workspace)))
        else:
            found = await _yielding(services.count_document(target, model, workspace))
            counts.append(found.count)
    return counts


async def _yielding(work: Awaitable[T]) -> T:
    """Let others have the loop between many small counts."""
    await asyncio.sleep(0)
    return await work


def _slice(document: TextDocument, span: Range) -> str:
    try:
        return document.slice(span)
    except ValueError as exc:
        raise RequestError("badParams", str(exc)) from None


def _result(
    count: Count, version: int | None, ranges: list[Count] | None, models: list[Count] | None
) -> CountResult:
    fields = msgspec.structs.asdict(count)
    # The model that is counted for stands among them, named or not.
    compared = {one.model: one for one in (count, *models)}.values() if models else ()
    text = comparison_text(compared) if compared else ""
    return CountResult(**fields, version=version, ranges=ranges, models=models, text=text)
