"""An MCP server with many tools, which tests start as coding agents do.

Run as `python -m tests.mcp_tool_server [TOOLS] [PID_FILE]`. A negative number of tools makes the
server hang instead of listing them. With PID_FILE, the server runs in a child process, as with
`npx`; the file gets the ids of both processes and the working folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

INSTRUCTIONS = "Answers questions about crates.\nUse it before you open a crate."


def description(number: int) -> str:
    """Return the description of a tool: two lines, the first with 200 characters."""
    return f"Opens crate {number} and lists what is in it. ".ljust(200, "x") + "\nNever shakes it."


RICH_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Crate to open",
    "type": "object",
    "properties": {
        "crate": {
            "type": "string",
            "title": "Crate",
            "pattern": "^c",
            "minLength": 1,
            "format": "uri",
        },
        "kind": {"type": "string", "enum": ["wood", "tin"], "default": "tin"},
        "size": {"anyOf": [{"type": "integer", "maximum": 9}, {"type": "null"}], "examples": [3]},
        "labels": {"type": "array", "items": {"$ref": "#/$defs/label"}, "maxItems": 4},
        "mode": {"const": "crate"},
    },
    "$defs": {"label": {"type": "object", "properties": {"text": {"type": "string"}}}},
    "required": ["crate"],
    "additionalProperties": False,
}
"""The schema of the first tool, with keywords that some agents drop."""


def make_tools(number: int) -> list[types.Tool]:
    """Return tools with two parameters each."""
    properties = {
        "crate": {"type": "string", "description": "Which crate"},
        "depth": {"type": "integer", "minimum": 1},
    }
    schema = {"type": "object", "properties": properties, "required": ["crate"]}
    return [
        types.Tool(
            name=f"open_crate_{one}",
            title=f"Crate {one}",
            description=description(one),
            input_schema=schema if one else RICH_SCHEMA,
        )
        for one in range(number)
    ]


def create_server(tools: int) -> Server[Any]:
    """Create the server. It lists ten tools per page."""

    async def list_tools(
        _: Any, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        if tools < 0:
            time.sleep(600)  # noqa: ASYNC251 - the server must not notice that its input is closed
        first = int((params and params.cursor) or 0)
        every = make_tools(tools)
        following = first + 10
        return types.ListToolsResult(
            tools=every[first:following],
            next_cursor=str(following) if following < tools else None,
        )

    return Server("crates", version="1", instructions=INSTRUCTIONS, on_list_tools=list_tools)


async def serve(tools: int) -> None:
    server = create_server(tools)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    tools, pid_file = (*sys.argv[1:], "12", "")[0], (*sys.argv[2:], "")[0]
    if pid_file:
        child = subprocess.Popen([sys.executable, "-m", "tests.mcp_tool_server", tools])
        Path(pid_file).write_text(f"{os.getpid()} {child.pid} {Path.cwd()}")
        sys.exit(child.wait())
    anyio.run(serve, int(tools))
