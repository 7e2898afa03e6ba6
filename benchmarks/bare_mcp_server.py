"""A peer: a minimal server on the MCP SDK with one tool."""

from __future__ import annotations

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server


async def _list_tools(_: object, __: object) -> types.ListToolsResult:
    tool = types.Tool(name="echo", description="Echo.", input_schema={"type": "object"})
    return types.ListToolsResult(tools=[tool])


async def _serve() -> None:
    server = Server("bare", on_list_tools=_list_tools)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(_serve)
