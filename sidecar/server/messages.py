"""Every custom message: its params, its result and what it means.

The one source of docs/reference/protocol.md, of `token-sidecar schema` and of both shims' types.
Results live in the rooms that make them; this file holds params and the table. It imports neither
pygls nor lsprotocol, so that the command line can print the schema without a server.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sidecar.context import params as context
from sidecar.context.results import (
    AssembleResult,
    ContextUsage,
    ContextWarning,
    FitResult,
    PreflightResult,
    ResponseResult,
)
from sidecar.cost.book import CostDetailParams, CostRecorded, CostRecordParams
from sidecar.cost.rows import CostReport
from sidecar.counting.catalogue import ModelInfo
from sidecar.counting.count import Count
from sidecar.counting.fit import MARKER, Fitted, Mode
from sidecar.endpoints.outcome import Capability
from sidecar.text.positions import Range
from sidecar.workspace.status import StatusUpdate

PROTOCOL_VERSION = 1


class Params(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Params may hold members that this version does not know: they are ignored."""


class TextDocumentIdentifier(Params, frozen=True, kw_only=True):
    """A document that the client has opened."""

    uri: str


class CountParams(Params, frozen=True, kw_only=True):
    """What to count: one of `textDocument` or `text`; for which model or models."""

    text_document: TextDocumentIdentifier | None = None
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    """A chat in a vendor's message form; counted with what the model's format adds to it."""
    tools: list[dict[str, Any]] | None = None
    """Tool schemas sent with `messages`."""
    range: Range | None = None
    """Count only this part of the document."""
    ranges: list[Range] | None = None
    """Count these parts too, each on its own."""
    model: str | None = None
    models: list[str] | None = None
    """Count for each of these models too."""


class FitTextParams(Params, frozen=True, kw_only=True):
    """A text, a document or a part of it, to be shortened to a number of tokens."""

    text_document: TextDocumentIdentifier | None = None
    text: str | None = None
    range: Range | None = None
    max_tokens: Annotated[int, Meta(ge=0)]
    mode: Mode = "middle"
    """What is kept: the beginning, both ends, or the end."""
    model: str | None = None
    marker: str = MARKER
    """Stands in `middle` for what is left out; counted."""


class ModelsParams(Params, frozen=True, kw_only=True):
    """Which models to list: those whose `provider/id` holds every word of `query`."""

    query: str | None = None


class CapabilitiesParams(Params, frozen=True, kw_only=True):
    """What is known of the endpoints; asks nobody."""


class ProbeParams(Params, frozen=True, kw_only=True):
    """Ask again: every endpoint that the user declared, or one of them, for a model."""

    endpoint: str | None = None
    model: str | None = None


class CountResult(Count, frozen=True, rename="camel", kw_only=True):
    """A count, and the version of the document that was counted."""

    version: int | None = None
    ranges: list[Count] | None = None
    models: list[Count] | None = None


class Request(msgspec.Struct, frozen=True):
    """One custom request: its types, and a line for the reference."""

    params: type[msgspec.Struct]
    result: Any
    summary: str


class Notification(msgspec.Struct, frozen=True):
    """One custom notification to the client."""

    params: type[msgspec.Struct]
    summary: str


REQUESTS: dict[str, Request] = {
    "tokens/count": Request(
        CountParams,
        CountResult,
        "How many tokens a text, a document or parts of it are, for one model or several.",
    ),
    "tokens/fit": Request(
        FitTextParams,
        Fitted,
        "A text in at most `maxTokens` tokens: its beginning, its end, or both ends.",
    ),
    "models/list": Request(
        ModelsParams,
        list[ModelInfo],
        "The models of the catalogue, with their windows and what counts for them.",
    ),
    "context/set": Request(
        context.SetParams,
        ContextUsage,
        "What a conversation carries beside its turns: model, system prompt, tools, sections.",
    ),
    "context/append": Request(
        context.AppendParams,
        ContextUsage,
        "Turns that were added; usage, where given, anchors the number and is not billed.",
    ),
    "context/usage": Request(context.UsageParams, ContextUsage, "How full the context is."),
    "context/reset": Request(
        context.ResetParams, ContextUsage, "Forget the conversation, all but its model."
    ),
    "context/fit": Request(
        context.FitParams,
        FitResult,
        "A plan that makes the conversation fit, with its numbers; applied when asked.",
    ),
    "context/undo": Request(
        context.UndoParams, ContextUsage, "Take the last applied plan back, once."
    ),
    "context/assemble": Request(
        context.AssembleParams,
        AssembleResult,
        "A request's parts under a limit, its prefix byte-identical for identical inputs.",
    ),
    "context/response": Request(
        context.ResponseParams,
        ResponseResult,
        "A vendor's reply without cut-off tool calls; its usage is recorded once.",
    ),
    "context/preflight": Request(
        context.PreflightParams,
        PreflightResult,
        "A verdict before sending: whether it fits, what it costs, what the caps say.",
    ),
    "cost/record": Request(
        CostRecordParams, CostRecorded, "Record a call with any vendor's usage object."
    ),
    "cost/detail": Request(
        CostDetailParams, CostReport, "What calls have cost, by model, category, session, day …"
    ),
    "capabilities/list": Request(
        CapabilitiesParams, list[Capability], "What is known of the endpoints; sends nothing."
    ),
    "capabilities/probe": Request(
        ProbeParams,
        list[Capability],
        "Ask the endpoints again; sends nothing while `use-endpoint` is off.",
    ),
}

NOTIFICATIONS: dict[str, Notification] = {
    "status/update": Notification(
        StatusUpdate,
        "What to show for a document: once when it is opened, then whenever it changed.",
    ),
    "context/warning": Notification(
        ContextWarning, "A threshold, a cap or a window was crossed: once per crossing."
    ),
}
