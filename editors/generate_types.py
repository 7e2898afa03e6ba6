"""Generates both plugins' types from the schema of the custom messages.

    python editors/generate_types.py            write the files
    python editors/generate_types.py --check    exit with code 1 if a file is out of date

The files are `editors/neovim/lua/token_sidecar/types.lua` (LuaCATS) and
`editors/vscode/src/generated.ts`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidecar.server.schema import json_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).resolve().parent
HEAD = "Made by editors/generate_types.py from `token-sidecar schema`: do not edit."

Json = dict[str, Any]


def references(node: Any) -> Iterator[str]:
    """Return the names of all types that a part of the schema refers to."""
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].rsplit("/", 1)[1]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def reachable(schema: Json, slots: list[Json]) -> set[str]:
    """Return the names of all types that these parts of the schema use, directly or indirectly."""
    found: set[str] = set()
    todo = list(references(slots))
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += references(schema["$defs"][name])
    return found


def params_of(schema: Json) -> list[Json]:
    """Return the params that a client sends. Only these may omit fields that have a default."""
    return [request["params"] for request in schema["requests"].values()]


class Lua:
    """Generates LuaCATS. Nullable fields are optional, because Neovim omits null values."""

    path = HERE / "neovim/lua/token_sidecar/types.lua"
    simple = {  # noqa: RUF012
        "string": "string",
        "integer": "integer",
        "number": "number",
        "boolean": "boolean",
        "null": "nil",
        "object": "table",
        "array": "table",
    }
    any = "any"

    def ref(self, name: str) -> str:
        return f"token_sidecar.{name}"

    def array(self, item: str) -> str:
        return f"({item})[]" if "|" in item else f"{item}[]"

    def mapping(self, item: str) -> str:
        return f"table<string, {item}>"

    def head(self) -> str:
        return f"---@meta\n-- {HEAD}\n"

    def define(self, name: str, definition: Json, kinds: dict[str, str], optional: set[str]) -> str:
        lines = [f"--- {line}".rstrip() for line in definition["description"].splitlines()]
        if "properties" not in definition:
            return "\n".join(
                [*lines, f"---@alias {self.ref(name)} {translate(self, definition)}\n"]
            )
        lines.append(f"---@class {self.ref(name)}")
        for key, kind in kinds.items():
            parts = [part for part in kind.split("|") if part != "nil"]
            missing = "?" if key in optional or len(parts) < len(kind.split("|")) else ""
            lines.append(f"---@field {key}{missing} {'|'.join(parts)}")
        return "\n".join(lines) + "\n"


class TypeScript:
    """Generates strict TypeScript. Only fields in sent params may be omitted."""

    path = HERE / "vscode/src/generated.ts"
    simple = {  # noqa: RUF012
        "string": "string",
        "integer": "number",
        "number": "number",
        "boolean": "boolean",
        "null": "null",
        "object": "Record<string, unknown>",
        "array": "unknown[]",
    }
    any = "unknown"

    def ref(self, name: str) -> str:
        return name

    def array(self, item: str) -> str:
        return f"({item})[]" if "|" in item else f"{item}[]"

    def mapping(self, item: str) -> str:
        return f"Record<string, {item}>"

    def head(self) -> str:
        return f"// {HEAD}\n"

    def define(self, name: str, definition: Json, kinds: dict[str, str], optional: set[str]) -> str:
        comment = definition["description"].splitlines()
        lines = ["/**", *(f" * {line}".rstrip() for line in comment), " */"]
        if "properties" not in definition:
            return "\n".join([*lines, f"export type {name} = {translate(self, definition)};\n"])
        lines.append(f"export interface {name} {{")
        for key, kind in kinds.items():
            missing = "?" if key in optional else ""
            lines.append(f"  {key}{missing}: {kind.replace('|', ' | ')};")
        return "\n".join([*lines, "}\n"])


Language = Lua | TypeScript


def translate(language: Language, node: Json) -> str:
    """Translate a JSON Schema type. A union's members are separated by `|`."""
    if "$ref" in node:
        return language.ref(node["$ref"].rsplit("/", 1)[1])
    if "enum" in node:
        return "|".join(f'"{value}"' for value in node["enum"])
    for union in ("anyOf", "oneOf"):
        if union in node:
            return "|".join(dict.fromkeys(translate(language, each) for each in node[union]))
    kind = node.get("type")
    if kind == "array" and isinstance(node.get("items"), dict):
        return language.array(translate(language, node["items"]))
    if kind == "object" and isinstance(node.get("additionalProperties"), dict):
        return language.mapping(translate(language, node["additionalProperties"]))
    return language.simple.get(str(kind), language.any)


def render(language: Language, schema: Json) -> str:
    """Return the contents of the generated file."""
    left_out = reachable(schema, params_of(schema))
    parts = [language.head()]
    for name, definition in schema["$defs"].items():
        properties = definition.get("properties", {})
        kinds = {key: translate(language, node) for key, node in properties.items()}
        required = definition.get("required", [])
        optional = set(kinds) - set(required) if name in left_out else set()
        parts.append(language.define(name, definition, kinds, optional))
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write the files, or only check them. Return 1 if a file was out of date."""
    schema = json_schema()
    stale = 0
    act: Callable[[Path, str], object] = _tell if "--check" in arguments else _write
    for language in (Lua(), TypeScript()):
        text = render(language, schema)
        if not language.path.exists() or language.path.read_text(encoding="utf-8") != text:
            stale = 1
            act(language.path, text)
    return stale if "--check" in arguments else 0


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _tell(path: Path, _: str) -> None:
    sys.stderr.write(f"{path} is out of date: run python editors/generate_types.py\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
