"""Starts or contacts MCP servers, and lists their tools.

The servers are those in the configuration of coding agents. Nothing that they send is logged.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TextIO

import anyio
import httpx2
from mcp.client.client import Client
from mcp.client.stdio import DEFAULT_INHERITED_ENV_VARS, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from sidecar.errors import SidecarError
from sidecar.project.mcp_servers import McpServer, Tool, ToolList

SECONDS = 60.0
"""How long a server may take to list its tools. `npx` may have to download the server first."""
_MAX_PAGES = 100
_VARIABLE = re.compile(r"\$\{(?:env:)?(\w+)(?::-([^}]*))?\}|\{env:(\w+)\}")
"""Matches a variable in an entry: `${NAME}`, `${NAME:-default}`, `${env:NAME}` or `{env:NAME}`."""


class ToolListError(SidecarError):
    """A server did not list its tools."""


def list_tools(
    server: McpServer, folder: Path, env: Mapping[str, str], seconds: float = SECONDS
) -> ToolList:
    """Start or contact a server, list its tools, and stop it. This function blocks.

    Ctrl-C stops the server and its children.

    Args:
        server: The server.
        folder: The working folder, unless the entry names another one.
        env: The environment variables. The user's own entry may refer to them, a project's entry
            only to those that every program gets.
        seconds: How long this may take.

    Raises:
        ToolListError: The server could not be started, or did not list its tools in time.
    """
    # The SDK would log each line that it cannot parse.
    logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)
    variables = _variables_for(server, env)
    working = folder / os.path.expanduser(_expand(server.folder, variables))
    try:
        with open(os.devnull, "w", encoding="utf-8") as errors:
            return anyio.run(partial(_list_tools, server, working, variables, seconds, errors))
    except TimeoutError:
        message = f"did not list its tools within {seconds:g} seconds"
        raise ToolListError(message) from None
    except FileNotFoundError:
        raise ToolListError("its program or working folder does not exist") from None
    except Exception as error:
        raise ToolListError(f"did not list its tools: {_type_name(error)}") from error


async def _list_tools(
    server: McpServer, folder: Path, env: Mapping[str, str], seconds: float, errors: TextIO
) -> ToolList:
    with anyio.fail_after(seconds):
        async with _connect(server, folder, env, errors) as client:
            pages = [await client.list_tools()]
            while (cursor := pages[-1].next_cursor) and len(pages) < _MAX_PAGES:
                pages.append(await client.list_tools(cursor=cursor))
            tools = (
                Tool(tool.name, tool.description or "", tool.input_schema)
                for page in pages
                for tool in page.tools
            )
            return ToolList(tuple(tools), len(pages[0].tools), client.instructions or "")


@asynccontextmanager
async def _connect(
    server: McpServer, folder: Path, env: Mapping[str, str], errors: TextIO
) -> AsyncIterator[Client]:
    if server.command:
        program, *arguments = (_expand(text, env) for text in server.command)
        variables = {name: _expand(value, env) for name, value in server.env.items()}
        parameters = StdioServerParameters(
            command=program,
            args=arguments,
            env={**env, **variables},
            cwd=folder,
        )
        async with Client(stdio_client(parameters, errors)) as client:
            yield client
        return
    headers = {name: _expand(value, env) for name, value in server.headers.items()}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(_expand(server.url, env), http_client=http)) as client,
    ):
        yield client


def _variables_for(server: McpServer, env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that a server gets, and to which its entry may refer.

    A project could send the user's secrets anywhere. Its programs get the variables that every
    program gets, such as PATH, and its remote servers get none.
    """
    if server.is_own:
        return env
    names = DEFAULT_INHERITED_ENV_VARS if server.command else ()
    return {name: env[name] for name in names if name in env}


def _expand(text: str, env: Mapping[str, str]) -> str:
    """Replace the variables in a text. A missing variable is empty, unless it has a default."""
    return _VARIABLE.sub(lambda found: env.get(found[1] or found[3], found[2] or ""), text)


def _type_name(error: BaseException) -> str:
    """Return an error's type, or that of the first one in a group. Messages may contain text."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__
