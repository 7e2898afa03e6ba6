"""Runs the MCP server on standard input and output. No other module imports the MCP SDK."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server

from sidecar import __version__, typed
from sidecar.errors import SidecarError, log_defect
from sidecar.mcp.schemas import describe_tools
from sidecar.text.printable import printable, shorten_error

if TYPE_CHECKING:
    from sidecar.mcp.tools import Tools

_log = logging.getLogger(__name__)
_ROOTS_SECONDS = 2.0


def create_server(folder: Path) -> Server[Any]:
    """Create an MCP server for an agent that works in a folder."""
    opened: list[Tools] = []

    def tools() -> Tools:
        """Open the project on the first call, since some clients only list the tools."""
        if not opened:
            from sidecar.mcp.open_project import Project
            from sidecar.mcp.tools import Tools

            opened.append(Tools(Project(folder)))
        return opened[0]

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[dict[str, Any]]:
        try:
            yield {}
        finally:
            for one in opened:
                await one.aclose()

    async def list_tools(_: Any, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=_tool_list())

    async def call_tool(
        context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        return await _call_tool(tools(), context, params)

    return Server(
        "token-sidecar",
        version=__version__,
        title="token-sidecar",
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def run(folder: Path) -> None:
    """Serve a client on standard input and output until it disconnects."""

    async def serve() -> None:
        server = create_server(folder)
        stdin = anyio.wrap_file(_Input(sys.stdin.buffer, encoding="utf-8", errors="replace"))
        async with stdio_server(stdin) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    anyio.run(serve)


class _Input(TextIOWrapper):
    """Standard input without half surrogate pairs. The SDK does not answer requests with them."""

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        line = super().readline(size)
        return typed.repair(line).decode() if "\\ud" in line.lower() else line


def _tool_list() -> list[types.Tool]:
    annotations = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
    return [
        types.Tool(
            name=tool["name"],
            description=tool["description"],
            input_schema=tool["inputSchema"],
            annotations=annotations,
        )
        for tool in describe_tools()
    ]


async def _call_tool(
    tools: Tools, context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
) -> types.CallToolResult:
    from sidecar.mcp.open_project import identify
    from sidecar.mcp.tools import Call

    client = context.session.client_params
    name = client.client_info.name if client is not None else ""
    caller = identify(name, dict(context.meta or {}), os.environ, params.name)
    call = Call(caller, await _client_roots(context.session), context.session.report_progress)
    try:
        answer = await tools.run(params.name, params.arguments or {}, call)
    except SidecarError as error:
        return _error_result(str(error))
    except Exception as error:
        log_defect(error, f"tool {params.name}")
        return _error_result("token-sidecar failed; see its log for details.")
    content = types.TextContent(type="text", text=answer.text)
    return types.CallToolResult(content=[content], structured_content=answer.data)


async def _client_roots(session: ServerSession) -> list[Path]:
    capabilities = session.client_capabilities
    if capabilities is None or capabilities.roots is None or not session.can_send_request:
        return []
    from sidecar.workspace.workspace import path_of

    try:
        with anyio.fail_after(_ROOTS_SECONDS):
            listed = await session.send_request(types.ListRootsRequest(), types.ListRootsResult)
    except Exception as error:
        _log.info("the client did not provide its roots: %s", type(error).__name__)
        return []
    paths = [path_of(str(root.uri)) for root in listed.roots]
    return [Path(path) for path in paths if path is not None]


def _error_result(message: str) -> types.CallToolResult:
    text = shorten_error(printable(message))
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)
