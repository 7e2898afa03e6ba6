"""The custom messages as JSON Schema, and the reference page generated from it."""

from __future__ import annotations

import inspect
import json
from typing import Any

import msgspec

from sidecar.errors import ERROR_KINDS
from sidecar.server.framing import MAX_DEPTH, MAX_FRAME_BYTES
from sidecar.server.methods import NOTIFICATIONS, PROTOCOL_VERSION, REQUESTS

_REF = "#/$defs/{name}"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return one schema document: `requests` and `notifications` refer to types under `$defs`."""
    kinds = [kind for _, kind in _slots()]
    refs, definitions = msgspec.json.schema_components(kinds, ref_template=_REF)
    by_slot = {slot: ref for (slot, _), ref in zip(_slots(), refs, strict=True)}
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


def _slots() -> list[tuple[str, Any]]:
    slots: list[tuple[str, Any]] = []
    for method, request in REQUESTS.items():
        slots += [(f"{method} params", request.params), (f"{method} result", request.result)]
    slots += [(f"{method} params", note.params) for method, note in NOTIFICATIONS.items()]
    return slots


def markdown() -> str:
    """Return the contents of docs/reference/protocol.md."""
    schema = json_schema()
    parts = [_head()]
    parts += ["## Requests\n", *[_method(m, e) for m, e in schema["requests"].items()]]
    parts += ["## Notifications\n", *[_method(m, e) for m, e in schema["notifications"].items()]]
    parts += ["## Types\n", *[_type(n, d) for n, d in schema["$defs"].items()]]
    kinds = "\n".join(f"| `{kind}` | {text} |" for kind, text in ERROR_KINDS.items())
    parts.append(f"## Error kinds\n\n| kind | meaning; code |\n|---|---|\n{kinds}\n")
    return "\n".join(parts)


def _head() -> str:
    megabytes = MAX_FRAME_BYTES >> 20
    return _HEAD.format(version=PROTOCOL_VERSION, depth=MAX_DEPTH, megabytes=megabytes)


_HEAD = """# Protocol reference

<!-- Made by `token-sidecar schema --markdown`; a test fails when it is out of date. -->

Custom JSON-RPC methods of token-sidecar, protocol version {version}. `initialize` announces them
under `capabilities.experimental.tokenSidecar`. Fields are only added, never renamed. A `null`
means "not known". Positions are in the negotiated encoding, `characters` are Unicode code points,
money is USD. A range is clamped to its document, and swapped where it is then reversed.

Every request gets exactly one answer; an error carries `data: {{kind, retryable}}`. Beside the
kinds below: -32700 for a body that is not JSON in UTF-8, holds a number that is not finite, or is
nested over {depth} deep; -32600 for a message without `"jsonrpc": "2.0"`, and for the id of a
request that is still in work; -32601 for a method that is none, or is a notification. The session
ends with `exit`, with the process that `initialize` named, and with a frame over {megabytes} MB.

The server is started with `token-sidecar serve` and speaks LSP on standard input and output. In
its first moments `limit`, `percent` and `inputCostUsd` of a count may be null: the list of models
is loaded in the background, and a `status/update` follows.
"""


def _method(method: str, entry: dict[str, Any]) -> str:
    lines = [f"### `{method}`\n", entry["description"], "", f"- params: {_name(entry['params'])}"]
    if "result" in entry:
        lines.append(f"- result: {_name(entry['result'])}")
    return "\n".join(lines) + "\n"


def _type(name: str, definition: dict[str, Any]) -> str:
    text = inspect.cleandoc(definition.get("description", ""))
    rows = [
        f"| `{key}` | {_name(value)} | {_default(key, value, definition)} |"
        for key, value in definition.get("properties", {}).items()
    ]
    if not rows:
        return f"### {name}\n\n{text}\n\n{_name(definition)}\n"
    table = "| member | type | |\n|---|---|---|\n" + "\n".join(rows)
    return f"### {name}\n\n{text}\n\n{table}\n"


def _default(key: str, value: dict[str, Any], definition: dict[str, Any]) -> str:
    if key in definition.get("required", ()):
        return "always there"
    default = value.get("default")
    return "optional" if default is None else f"optional, `{json.dumps(default)}`"


def _name(value: dict[str, Any]) -> str:
    """Return a type's name for readers."""
    if "$ref" in value:
        name = value["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(_name(option) for option in value["anyOf"])
    if "enum" in value:
        return " or ".join(f"`{option}`" for option in value["enum"])
    if value.get("type") == "array":
        return f"list of {_name(value.get('items', {}))}"
    if value.get("type") == "object" and isinstance(value.get("additionalProperties"), dict):
        return f"map of {_name(value['additionalProperties'])}"
    return f"{value.get('type', 'any JSON value')}"
