"""Every custom message: its params, its result and what it means.

The one source of docs/reference/protocol.md, of `token-sidecar schema` and of both shims' types.
Results live in the rooms that make them; this file holds params and the table. It imports neither
pygls nor lsprotocol, so that the command line can print the schema without a server.
"""

from __future__ import annotations

from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sidecar.counting.count import Count, Method
from sidecar.counting.fit import MARKER, Fitted, Mode
from sidecar.messages.bounds import MOST_TOKENS
from sidecar.text.positions import Range

PROTOCOL_VERSION = 1


class Params(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Params may hold members that this version does not know: they are ignored."""


class TextDocumentIdentifier(Params, frozen=True, kw_only=True):
    """A document that the client has opened."""

    uri: str


class CountParams(Params, frozen=True, kw_only=True):
    """What to count: one of `textDocument`, `text` and `messages`; for which model or models."""

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
    max_tokens: Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
    mode: Mode = "middle"
    """What is kept: the beginning, both ends, or the end."""
    model: str | None = None
    marker: str = MARKER
    """Stands in `middle` for what is left out; counted."""


class ModelsParams(Params, frozen=True, kw_only=True):
    """Which models to list: those whose `provider/id` holds every word of `query`."""

    workspace: str | None = None
    """With `choices`: whose model, calls and endpoints come first; the first root by default."""
    query: str | None = None
    choices: bool = False
    """For a picker: each name that a request takes for a model, once, as it would be counted."""


class CapabilitiesParams(Params, frozen=True, kw_only=True):
    """What is known of the endpoints; asks nobody."""

    workspace: str | None = None
    """Whose settings: a root, a path in it or an open document; the first root by default."""
    text_document: TextDocumentIdentifier | None = None
    """The same by a document, where no workspace is named."""


class ProbeParams(Params, frozen=True, kw_only=True):
    """Ask again: every endpoint that the user declared, or one of them, for a model."""

    endpoint: str | None = None
    model: str | None = None
    """By default that of the workspace."""
    workspace: str | None = None
    """Whose settings and model: as in `capabilities/list`."""
    text_document: TextDocumentIdentifier | None = None


class CountResult(Count, frozen=True, rename="camel", kw_only=True):
    """A count, and the version of the document that was counted."""

    version: int | None = None
    ranges: list[Count] | None = None
    models: list[Count] | None = None
    text: str = ""
    """The models side by side as a plain table, the fewest tokens first; else empty."""


class FitTextResult(Fitted, frozen=True, rename="camel", kw_only=True):
    """A text that fits, what it lost, and how it was counted."""

    model: str
    method: Method
    tokenizer: str
    error_percent: float | None


class CustomRequest(msgspec.Struct, frozen=True):
    """One custom request. Types are named (`module:Class`) and loaded when first needed: a server
    that starts must not wait for rooms that nobody has asked for yet."""

    params_at: str
    result_at: str
    summary: str
    many: bool = False
    """Whether the result is a list of these."""

    @property
    def params(self) -> type[msgspec.Struct]:
        """The class of the params."""
        return _load(self.params_at)

    @property
    def result(self) -> Any:
        """The type of the result."""
        loaded: Any = _load(self.result_at)
        return list[loaded] if self.many else loaded


class Notification(msgspec.Struct, frozen=True):
    """One custom notification to the client."""

    params_at: str
    summary: str

    @property
    def params(self) -> type[msgspec.Struct]:
        """The class of the params."""
        return _load(self.params_at)


@cache
def _load(name: str) -> type[msgspec.Struct]:
    found: type[msgspec.Struct] = resolve_name(name)
    return found


REQUESTS: dict[str, CustomRequest] = {
    "tokens/count": CustomRequest(
        "sidecar.server.methods:CountParams",
        "sidecar.server.methods:CountResult",
        "How many tokens a text, a document or parts of it are, for one model or several.",
    ),
    "tokens/fit": CustomRequest(
        "sidecar.server.methods:FitTextParams",
        "sidecar.server.methods:FitTextResult",
        "A text in at most `maxTokens` tokens: its beginning, its end, or both ends.",
    ),
    "models/list": CustomRequest(
        "sidecar.server.methods:ModelsParams",
        "sidecar.counting.listing:ModelInfo",
        "The models of the catalogue, with their windows and what counts for them.",
        many=True,
    ),
    "context/set": CustomRequest(
        "sidecar.context.params:SetParams",
        "sidecar.context.usage:ContextUsage",
        "What a conversation carries beside its turns: model, system prompt, tools, sections.",
    ),
    "context/append": CustomRequest(
        "sidecar.context.params:AppendParams",
        "sidecar.context.usage:ContextUsage",
        "Turns that were added; usage, where given, anchors the number and is not billed.",
    ),
    "context/usage": CustomRequest(
        "sidecar.context.params:UsageParams",
        "sidecar.context.usage:ContextUsage",
        "How full the context is.",
    ),
    "context/sessions": CustomRequest(
        "sidecar.context.params:SessionsParams",
        "sidecar.context.usage:SessionRow",
        "The sessions of a workspace, newest first, whoever feeds them.",
        many=True,
    ),
    "context/select": CustomRequest(
        "sidecar.context.params:SelectParams",
        "sidecar.context.usage:ContextUsage",
        "The session that the status shows, until it ends; null: chosen automatically again.",
    ),
    "context/reset": CustomRequest(
        "sidecar.context.params:ResetParams",
        "sidecar.context.usage:ContextUsage",
        "Forget the conversation, all but its model.",
    ),
    "context/fit": CustomRequest(
        "sidecar.context.params:FitParams",
        "sidecar.context.results:FitResult",
        "A plan that makes the conversation fit, with its numbers; applied when asked.",
    ),
    "context/undo": CustomRequest(
        "sidecar.context.params:UndoParams",
        "sidecar.context.usage:ContextUsage",
        "Take the last applied plan back, once.",
    ),
    "context/assemble": CustomRequest(
        "sidecar.context.params:AssembleParams",
        "sidecar.context.results:AssembleResult",
        "A request's parts under a limit, its prefix byte-identical for identical inputs.",
    ),
    "context/response": CustomRequest(
        "sidecar.context.params:ResponseParams",
        "sidecar.context.results:ResponseResult",
        "A vendor's reply without cut-off tool calls; its usage is recorded once.",
    ),
    "context/preflight": CustomRequest(
        "sidecar.context.params:PreflightParams",
        "sidecar.context.results:PreflightResult",
        "A verdict before sending: whether it fits, what it costs, what the caps say.",
    ),
    "cost/record": CustomRequest(
        "sidecar.cost.params:CostRecordParams",
        "sidecar.cost.params:CostRecorded",
        "Record a call with any vendor's usage object.",
    ),
    "cost/detail": CustomRequest(
        "sidecar.cost.params:CostDetailParams",
        "sidecar.cost.rows:CostReport",
        "What calls have cost, by model, category, session, day …",
    ),
    "cost/files": CustomRequest(
        "sidecar.cost.params:CostFilesParams",
        "sidecar.cost.params:FileCost",
        "What the prompt files have cost that ride along with every request of an agent.",
        many=True,
    ),
    "capabilities/list": CustomRequest(
        "sidecar.server.methods:CapabilitiesParams",
        "sidecar.endpoints.outcome:Capability",
        "What is known of the endpoints; sends nothing.",
        many=True,
    ),
    "capabilities/probe": CustomRequest(
        "sidecar.server.methods:ProbeParams",
        "sidecar.endpoints.outcome:Capability",
        "Ask the endpoints again; sends nothing while `use-endpoint` is off.",
        many=True,
    ),
}

NOTIFICATIONS: dict[str, Notification] = {
    "status/update": Notification(
        "sidecar.workspace.status:StatusUpdate",
        "What to show for a document: once when it is opened, then whenever it changed.",
    ),
    "context/warning": Notification(
        "sidecar.context.usage:ContextWarning",
        "A threshold, a cap or a window was crossed: once per crossing.",
    ),
}
