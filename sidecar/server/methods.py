"""Declares all custom messages, with their params, results and descriptions.

docs/reference/protocol.md, the output of `token-sidecar schema` and the editors' types are
generated from them by `reference_page` and `json_schema`. Result types are defined in the packages
that produce them. The module does not import pygls or lsprotocol because the command line needs the
schema without the server.
"""

from __future__ import annotations

import inspect
import json
from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sidecar.config.settings import Truncation
from sidecar.counting.count_result import Count, Method
from sidecar.counting.fitting import MARKER, FittedText
from sidecar.errors import ERROR_KINDS
from sidecar.messages.vendor_usage import MOST_TOKENS
from sidecar.server.stdio import MAX_DEPTH, MAX_FRAME_BYTES
from sidecar.text.document import Range
from sidecar.text.tables import markdown_table

PROTOCOL_VERSION = 1


class Params(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base class of all params. Unknown members are ignored."""


class TextDocumentIdentifier(Params, frozen=True, kw_only=True):
    """A document opened by the client."""

    uri: str


class CountParams(Params, frozen=True, kw_only=True):
    """The text to count: a document, `text` or `messages`.

    A document that is given with `text` is not counted. It determines the default model.
    """

    text_document: TextDocumentIdentifier | None = None
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    """A chat in any vendor's format. The count includes the overhead of the model's chat format."""
    tools: list[dict[str, Any]] | None = None
    """Tool schemas sent along with `messages`."""
    range: Range | None = None
    """Count only this range of the document."""
    ranges: list[Range] | None = None
    """Also count each of these ranges separately."""
    model: str | None = None
    """Defaults to the model that the document's status shows, or else to the workspace's model."""
    models: list[str] | None = None
    """Also count for each of these models."""


class FitTextParams(Params, frozen=True, kw_only=True):
    """Shorten `text`, a document or a range in it to `maxTokens` tokens.

    A document that is given with `text` is not shortened. It determines the default model.
    """

    text_document: TextDocumentIdentifier | None = None
    text: str | None = None
    range: Range | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
    mode: Truncation = "middle"
    """Which part to keep. `middle` keeps the start and the end, and removes the middle."""
    model: str | None = None
    """Defaults to the model that the document's status shows, or else to the workspace's model."""
    marker: str = MARKER
    """Replaces the removed text if `mode` is `middle`. Its tokens are included in the count."""


class ModelsParams(Params, frozen=True, kw_only=True):
    """List the models whose `provider/id` contains every word of `query`."""

    workspace: str | None = None
    """With `choices`, this workspace's models come first. The default is the first root."""
    query: str | None = None
    choices: bool = False
    """List each accepted model name once, for use in a picker."""


class CapabilitiesParams(Params, frozen=True, kw_only=True):
    """List what is known about the endpoints, without sending requests to them."""

    workspace: str | None = None
    """Use the settings for this root, path or open document. Defaults to the first root."""
    text_document: TextDocumentIdentifier | None = None
    """Use this document's workspace if `workspace` is missing."""


class ProbeParams(Params, frozen=True, kw_only=True):
    """Probe one endpoint, or all endpoints if `endpoint` is missing."""

    endpoint: str | None = None
    model: str | None = None
    """Defaults to the workspace's model."""
    workspace: str | None = None
    """A root, a path in a root, or an open document. Defaults to the first root."""
    text_document: TextDocumentIdentifier | None = None


class CountResult(Count, frozen=True, rename="camel", kw_only=True):
    """A token count, with the document's version if a document was counted."""

    version: int | None = None
    ranges: list[Count] | None = None
    models: list[Count] | None = None
    text: str = ""
    """A plain-text table that compares the models. Empty unless `models` was sent."""


class FitTextResult(FittedText, frozen=True, rename="camel", kw_only=True):
    """The shortened text, what was removed, and how the tokens were counted."""

    model: str
    method: Method
    tokenizer: str
    error_percent: float | None


class Notification(msgspec.Struct, frozen=True):
    """A custom notification to the client. Types are given as `module:Class`, and imported on first
    use.
    """

    params_at: str
    summary: str

    @property
    def params(self) -> type[msgspec.Struct]:
        return _resolve_struct(self.params_at)


class CustomRequest(Notification, frozen=True):
    """A custom request."""

    result_at: str
    many: bool = False
    """Whether the result is a list."""

    @property
    def result(self) -> Any:
        loaded: Any = _resolve_struct(self.result_at)
        return list[loaded] if self.many else loaded


@cache
def _resolve_struct(name: str) -> type[msgspec.Struct]:
    found: type[msgspec.Struct] = resolve_name(name)
    return found


REQUESTS: dict[str, CustomRequest] = {
    "tokens/count": CustomRequest(
        "sidecar.server.methods:CountParams",
        "Count the tokens in text, a chat or a document for one or more models.",
        "sidecar.server.methods:CountResult",
    ),
    "tokens/fit": CustomRequest(
        "sidecar.server.methods:FitTextParams",
        "Shorten text to at most `maxTokens` tokens, keeping its start, its end or both.",
        "sidecar.server.methods:FitTextResult",
    ),
    "models/list": CustomRequest(
        "sidecar.server.methods:ModelsParams",
        "List the known models, with their context windows and tokenizers.",
        "sidecar.counting.model_list:ModelInfo",
        many=True,
    ),
    "context/set": CustomRequest(
        "sidecar.conversations.context_protocol:SetParams",
        "Set a conversation's model, system prompt, tools and sections.",
        "sidecar.conversations.context_protocol:ContextUsage",
    ),
    "context/append": CustomRequest(
        "sidecar.conversations.context_protocol:AppendParams",
        "Add turns to a conversation. `usage` corrects the size but is not recorded as a cost.",
        "sidecar.conversations.context_protocol:ContextUsage",
    ),
    "context/usage": CustomRequest(
        "sidecar.conversations.context_protocol:UsageParams",
        "Return how full the context is.",
        "sidecar.conversations.context_protocol:ContextUsage",
    ),
    "context/page": CustomRequest(
        "sidecar.conversations.context_protocol:UsageParams",
        "Return the context view as a page, with a breakdown and a forecast.",
        "sidecar.text.pages:Page",
    ),
    "context/footprint": CustomRequest(
        "sidecar.workspace.footprint_report:FootprintParams",
        "Return what coding agents send before the first word, and what of it is lost.",
        "sidecar.workspace.footprint_report:FootprintReport",
    ),
    "context/footprintPage": CustomRequest(
        "sidecar.workspace.footprint_report:FootprintParams",
        "Return what coding agents send before the first word, as a page.",
        "sidecar.text.pages:Page",
    ),
    "context/sessions": CustomRequest(
        "sidecar.conversations.context_protocol:SessionsParams",
        "List a workspace's chat and agent sessions, newest first.",
        "sidecar.conversations.context_protocol:SessionRow",
        many=True,
    ),
    "context/select": CustomRequest(
        "sidecar.conversations.context_protocol:SelectParams",
        "Show a session until it ends. Null returns to automatic selection.",
        "sidecar.conversations.context_protocol:ContextUsage",
    ),
    "context/reset": CustomRequest(
        "sidecar.conversations.context_protocol:ResetParams",
        "Reset a conversation, but keep its model.",
        "sidecar.conversations.context_protocol:ContextUsage",
    ),
    "context/fit": CustomRequest(
        "sidecar.conversations.context_protocol:FitParams",
        "Plan which turns to remove so that a conversation fits, or apply a plan.",
        "sidecar.conversations.context_protocol:FitResult",
    ),
    "context/undo": CustomRequest(
        "sidecar.conversations.context_protocol:UndoParams",
        "Undo the last applied plan. Earlier plans cannot be undone.",
        "sidecar.conversations.context_protocol:ContextUsage",
    ),
    "context/assemble": CustomRequest(
        "sidecar.conversations.context_protocol:AssembleParams",
        "Assemble a prompt within a token limit. Identical inputs produce an identical prefix.",
        "sidecar.conversations.context_protocol:AssembleResult",
    ),
    "context/response": CustomRequest(
        "sidecar.conversations.context_protocol:ResponseParams",
        "Remove truncated tool calls from a vendor's reply, and record its usage once.",
        "sidecar.conversations.context_protocol:ResponseResult",
    ),
    "context/preflight": CustomRequest(
        "sidecar.conversations.context_protocol:PreflightParams",
        "Check a prompt against the window and the spending caps, and estimate its cost.",
        "sidecar.conversations.context_protocol:PreflightResult",
    ),
    "cost/record": CustomRequest(
        "sidecar.cost.cost_protocol:CostRecordParams",
        "Record a call with any vendor's usage object.",
        "sidecar.cost.cost_protocol:CostRecorded",
    ),
    "cost/detail": CustomRequest(
        "sidecar.cost.cost_protocol:CostDetailParams",
        "Report recorded costs by model, category, session, day and more.",
        "sidecar.cost.cost_protocol:CostReport",
    ),
    "cost/page": CustomRequest(
        "sidecar.cost.cost_protocol:CostPageParams",
        "Return a cost report as a page with charts, for a panel in the editor.",
        "sidecar.text.pages:Page",
    ),
    "cost/files": CustomRequest(
        "sidecar.cost.cost_protocol:CostFilesParams",
        "Report the cost of prompt files, which agents send with every request.",
        "sidecar.cost.cost_protocol:FileCost",
        many=True,
    ),
    "capabilities/list": CustomRequest(
        "sidecar.server.methods:CapabilitiesParams",
        "List the endpoints' known capabilities. Sends no requests.",
        "sidecar.endpoints.outcome:Capability",
        many=True,
    ),
    "capabilities/probe": CustomRequest(
        "sidecar.server.methods:ProbeParams",
        "Probe the endpoints again. Sends no requests while `use-endpoint` is off.",
        "sidecar.endpoints.outcome:Capability",
        many=True,
    ),
}

NOTIFICATIONS: dict[str, Notification] = {
    "status/update": Notification(
        "sidecar.workspace.status:StatusUpdate",
        "A document's status. Sent when the document is opened and when its status changes.",
    ),
    "context/warning": Notification(
        "sidecar.conversations.context_protocol:ContextWarning",
        "Sent once each time a threshold, a cap or the context window is exceeded.",
    ),
}


_REF = "#/$defs/{name}"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return a JSON Schema of all custom messages. Types are defined under `$defs`."""
    kinds = [kind for _, kind in _message_types()]
    refs, definitions = msgspec.json.schema_components(kinds, ref_template=_REF)
    for definition in definitions.values():
        definition["description"] = inspect.cleandoc(definition["description"])
    by_slot = {slot: ref for (slot, _), ref in zip(_message_types(), refs, strict=True)}
    return {
        "$schema": _DIALECT,
        "title": "token-sidecar protocol",
        "protocolVersion": PROTOCOL_VERSION,
        "requests": {
            method: {
                "description": request.summary,
                "params": by_slot[f"{method} params"],
                "result": by_slot[f"{method} result"],
            }
            for method, request in REQUESTS.items()
        },
        "notifications": {
            method: {"description": note.summary, "params": by_slot[f"{method} params"]}
            for method, note in NOTIFICATIONS.items()
        },
        "$defs": dict(sorted(definitions.items())),
    }


def _message_types() -> list[tuple[str, Any]]:
    slots: list[tuple[str, Any]] = []
    for method, request in REQUESTS.items():
        slots += [(f"{method} params", request.params), (f"{method} result", request.result)]
    slots += [(f"{method} params", note.params) for method, note in NOTIFICATIONS.items()]
    return slots


def reference_page() -> str:
    """Return the contents of docs/reference/protocol.md."""
    schema = json_schema()
    head = _HEAD.format(version=PROTOCOL_VERSION, depth=MAX_DEPTH, megabytes=MAX_FRAME_BYTES >> 20)
    parts = [head]
    parts += ["## Requests\n", *[_describe_method(m, e) for m, e in schema["requests"].items()]]
    parts += [
        "## Notifications\n",
        *[_describe_method(m, e) for m, e in schema["notifications"].items()],
    ]
    parts += ["## Types\n", *[_describe_type(n, d) for n, d in schema["$defs"].items()]]
    kinds = [(f"`{kind}`", text) for kind, text in ERROR_KINDS.items()]
    parts.append(f"## Error kinds\n\n{markdown_table([('kind', 'meaning; code'), *kinds])}\n")
    return "\n".join(parts)


_HEAD = """# Protocol reference

<!-- Generated by `token-sidecar schema --markdown`; a test fails if it is out of date. -->

Custom JSON-RPC methods of token-sidecar, protocol version {version}. `initialize` announces them
under `capabilities.experimental.tokenSidecar`. Later versions only add fields. `null` means
"unknown". Positions use the negotiated encoding, `characters` counts Unicode code points, and
money is in USD. Ranges are clamped to the document; a reversed range is swapped.

`token-sidecar serve` starts the server, which speaks LSP on stdin and stdout. The session ends
after `exit`, after a frame over {megabytes} MB, or when the process named in `initialize` ends.
For about a second after the start, while the list of models is being loaded, `limit`, `percent`
and `inputCostUsd` of a count may be null; a `status/update` follows.

Every request gets exactly one answer. Errors carry `data: {{kind, retryable}}`, with the kinds
listed [at the end](#error-kinds). Messages that are not valid requests get these codes:

- -32700: the body is not JSON in UTF-8, contains a number that is not finite, or is nested more
  than {depth} levels deep
- -32600: the message has no `"jsonrpc": "2.0"`, or reuses the id of a running request
- -32601: the method does not exist, or is a notification
"""


def _describe_method(method: str, entry: dict[str, Any]) -> str:
    lines = [
        f"### `{method}`\n",
        entry["description"],
        "",
        f"- params: {_type_name(entry['params'])}",
    ]
    if "result" in entry:
        lines.append(f"- result: {_type_name(entry['result'])}")
    return "\n".join(lines) + "\n"


def _describe_type(name: str, definition: dict[str, Any]) -> str:
    text = definition["description"]
    rows = [
        (f"`{key}`", _type_name(value), _describe_presence(key, value, definition))
        for key, value in definition.get("properties", {}).items()
    ]
    if not rows:
        return f"### {name}\n\n{text}\n\n{_type_name(definition)}\n"
    table = markdown_table([("member", "type", ""), *rows], left=2)
    return f"### {name}\n\n{text}\n\n{table}\n"


def _describe_presence(key: str, value: dict[str, Any], definition: dict[str, Any]) -> str:
    if key in definition.get("required", ()):
        return "always present"
    default = value.get("default")
    text = json.dumps(default)
    # Omit long defaults. A page's stylesheet, for example, would fill the table.
    return "optional" if default is None or len(text) > 200 else f"optional, `{text}`"


def _type_name(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(_type_name(option) for option in value["anyOf"])
    if "enum" in value:
        return " or ".join(f"`{option}`" for option in value["enum"])
    if value.get("type") == "array":
        return f"list of {_type_name(value.get('items', {}))}"
    if value.get("type") == "object" and isinstance(value.get("additionalProperties"), dict):
        return f"map of {_type_name(value['additionalProperties'])}"
    return f"{value.get('type', 'any JSON value')}"
