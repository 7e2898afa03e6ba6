"""All custom messages: params, result and description.

The source of docs/reference/protocol.md, of `token-sidecar schema` and of both shims' types.
Results are defined in the packages that produce them; this module has the params and the table. It
imports neither pygls nor lsprotocol, so that the command line can print the schema without a
server.
"""

from __future__ import annotations

from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sidecar.counting.count import Count, Method
from sidecar.counting.fit import MARKER, FitResult, Mode
from sidecar.messages.usage import MOST_TOKENS
from sidecar.text.positions import Range

PROTOCOL_VERSION = 1


class Params(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Params; members unknown to this version are ignored."""


class TextDocumentIdentifier(Params, frozen=True, kw_only=True):
    """A document that the client has opened."""

    uri: str


class CountParams(Params, frozen=True, kw_only=True):
    """One of `textDocument`, `text` and `messages` to count, and the models to count it for."""

    text_document: TextDocumentIdentifier | None = None
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    """A chat in a vendor's message form; the model's chat format is counted too."""
    tools: list[dict[str, Any]] | None = None
    """Tool schemas sent with `messages`."""
    range: Range | None = None
    """Count only this part of the document."""
    ranges: list[Range] | None = None
    """Also count these parts, each on its own."""
    model: str | None = None
    models: list[str] | None = None
    """Also count for each of these models."""


class FitTextParams(Params, frozen=True, kw_only=True):
    """A text, a document or a part of it to shorten to a number of tokens."""

    text_document: TextDocumentIdentifier | None = None
    text: str | None = None
    range: Range | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
    mode: Mode = "middle"
    """The part to keep: the start, both ends (`middle`) or the end."""
    model: str | None = None
    marker: str = MARKER
    """Inserted in `middle` for the removed text; it is counted."""


class ModelsParams(Params, frozen=True, kw_only=True):
    """The models to list: those whose `provider/id` contains every word of `query`."""

    workspace: str | None = None
    """With `choices`: the workspace whose models come first; the first root by default."""
    query: str | None = None
    choices: bool = False
    """List each model name that requests accept once, for a picker."""


class CapabilitiesParams(Params, frozen=True, kw_only=True):
    """Known capabilities of the endpoints; sends no request."""

    workspace: str | None = None
    """A root, a path in it or an open document, for its settings; the first root by default."""
    text_document: TextDocumentIdentifier | None = None
    """The document for its settings, if no workspace is given."""


class ProbeParams(Params, frozen=True, kw_only=True):
    """The endpoint to probe, or all endpoints."""

    endpoint: str | None = None
    model: str | None = None
    """The workspace's model by default."""
    workspace: str | None = None
    """For settings and model, as in `capabilities/list`."""
    text_document: TextDocumentIdentifier | None = None


class CountResult(Count, frozen=True, rename="camel", kw_only=True):
    """A count, with the version of the counted document."""

    version: int | None = None
    ranges: list[Count] | None = None
    models: list[Count] | None = None
    text: str = ""
    """A plain table of the models, fewest tokens first; empty without `models`."""


class FitTextResult(FitResult, frozen=True, rename="camel", kw_only=True):
    """A fitted text, what was removed, and how it was counted."""

    model: str
    method: Method
    tokenizer: str
    error_percent: float | None


class CustomRequest(msgspec.Struct, frozen=True):
    """A custom request. Types are named (`module:Class`) and imported at first use, to keep the
    server's start short.
    """

    params_at: str
    result_at: str
    summary: str
    many: bool = False
    """Whether the result is a list."""

    @property
    def params(self) -> type[msgspec.Struct]:
        """The class of the params."""
        return _load_params_type(self.params_at)

    @property
    def result(self) -> Any:
        """The type of the result."""
        loaded: Any = _load_params_type(self.result_at)
        return list[loaded] if self.many else loaded


class Notification(msgspec.Struct, frozen=True):
    """A custom notification to the client."""

    params_at: str
    summary: str

    @property
    def params(self) -> type[msgspec.Struct]:
        """The class of the params."""
        return _load_params_type(self.params_at)


@cache
def _load_params_type(name: str) -> type[msgspec.Struct]:
    found: type[msgspec.Struct] = resolve_name(name)
    return found


REQUESTS: dict[str, CustomRequest] = {
    "tokens/count": CustomRequest(
        "sidecar.server.methods:CountParams",
        "sidecar.server.methods:CountResult",
        "Count a text, a chat, a document or parts of it, for one model or several.",
    ),
    "tokens/fit": CustomRequest(
        "sidecar.server.methods:FitTextParams",
        "sidecar.server.methods:FitTextResult",
        "Shorten a text to at most `maxTokens` tokens, keeping its start, its end or both.",
    ),
    "models/list": CustomRequest(
        "sidecar.server.methods:ModelsParams",
        "sidecar.counting.model_list:ModelInfo",
        "List the models of the catalogue, with their windows and tokenizers.",
        many=True,
    ),
    "context/set": CustomRequest(
        "sidecar.context.protocol:SetParams",
        "sidecar.context.protocol:ContextUsage",
        "Set a conversation's model, system prompt, tools and sections.",
    ),
    "context/append": CustomRequest(
        "sidecar.context.protocol:AppendParams",
        "sidecar.context.protocol:ContextUsage",
        "Add turns; a given usage sets the context's size and is not billed.",
    ),
    "context/usage": CustomRequest(
        "sidecar.context.protocol:UsageParams",
        "sidecar.context.protocol:ContextUsage",
        "Return how full the context is.",
    ),
    "context/page": CustomRequest(
        "sidecar.context.protocol:UsageParams",
        "sidecar.text.pages:Page",
        "Return the context view as a page: what fills the window, and what comes next.",
    ),
    "context/sessions": CustomRequest(
        "sidecar.context.protocol:SessionsParams",
        "sidecar.context.protocol:SessionRow",
        "List the sessions of a workspace, of chats and agents, newest first.",
        many=True,
    ),
    "context/select": CustomRequest(
        "sidecar.context.protocol:SelectParams",
        "sidecar.context.protocol:ContextUsage",
        "Choose the session that the status shows until it ends; null: automatically.",
    ),
    "context/reset": CustomRequest(
        "sidecar.context.protocol:ResetParams",
        "sidecar.context.protocol:ContextUsage",
        "Reset the conversation, except its model.",
    ),
    "context/fit": CustomRequest(
        "sidecar.context.protocol:FitParams",
        "sidecar.context.protocol:FitResult",
        "Plan which turns to remove so that the conversation fits; optionally apply it.",
    ),
    "context/undo": CustomRequest(
        "sidecar.context.protocol:UndoParams",
        "sidecar.context.protocol:ContextUsage",
        "Undo the last applied plan, once.",
    ),
    "context/assemble": CustomRequest(
        "sidecar.context.protocol:AssembleParams",
        "sidecar.context.protocol:AssembleResult",
        "Assemble a request under a limit, with a byte-identical prefix for identical inputs.",
    ),
    "context/response": CustomRequest(
        "sidecar.context.protocol:ResponseParams",
        "sidecar.context.protocol:ResponseResult",
        "Clean a vendor's reply of cut-off tool calls, and record its usage once.",
    ),
    "context/preflight": CustomRequest(
        "sidecar.context.protocol:PreflightParams",
        "sidecar.context.protocol:PreflightResult",
        "Check a request before sending: whether it fits, its cost, and the spending caps.",
    ),
    "cost/record": CustomRequest(
        "sidecar.cost.protocol:CostRecordParams",
        "sidecar.cost.protocol:CostRecorded",
        "Record a call with any vendor's usage object.",
    ),
    "cost/detail": CustomRequest(
        "sidecar.cost.protocol:CostDetailParams",
        "sidecar.cost.protocol:CostReport",
        "Report costs of recorded calls, by model, category, session, day …",
    ),
    "cost/page": CustomRequest(
        "sidecar.cost.protocol:CostPageParams",
        "sidecar.text.pages:Page",
        "Report costs as a page with charts, for an editor's panel.",
    ),
    "cost/files": CustomRequest(
        "sidecar.cost.protocol:CostFilesParams",
        "sidecar.cost.protocol:FileCost",
        "Report the cost of prompt files, which agents send with every request.",
        many=True,
    ),
    "capabilities/list": CustomRequest(
        "sidecar.server.methods:CapabilitiesParams",
        "sidecar.endpoints.outcome:Capability",
        "List the known capabilities of the endpoints; sends nothing.",
        many=True,
    ),
    "capabilities/probe": CustomRequest(
        "sidecar.server.methods:ProbeParams",
        "sidecar.endpoints.outcome:Capability",
        "Probe the endpoints again; sends nothing while `use-endpoint` is off.",
        many=True,
    ),
}

NOTIFICATIONS: dict[str, Notification] = {
    "status/update": Notification(
        "sidecar.workspace.status:StatusUpdate",
        "The status of a document: sent when it is opened, then whenever it changes.",
    ),
    "context/warning": Notification(
        "sidecar.context.protocol:ContextWarning",
        "A threshold, a cap or a window was crossed; sent once per crossing.",
    ),
}
