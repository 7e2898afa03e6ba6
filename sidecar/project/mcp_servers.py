"""Finds the MCP servers that coding agents start, and what their tools add to each request.

Agents send the same tools very differently: whole schemas, a line per tool, a line per server, or
nothing. So a server has a number of tokens per agent. The numbers are kept when the user measures a
server, because its tools are known only while it runs. This module starts nothing.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from sidecar import typed
from sidecar.agents.file_reading import open_quietly, without_comments
from sidecar.config import toml
from sidecar.config.safe_files import lock_state, make_folder, read_file, write
from sidecar.counting.count_result import Measure, Method
from sidecar.messages.messages import as_json
from sidecar.models.names import generation_of, matches
from sidecar.text.json_objects import NotAnObjectError, parse_object

if TYPE_CHECKING:
    from sidecar.agents.folders import Places
    from sidecar.config.settings import Settings

FILE_NAME = "mcp-tools.json"
"""The file with the kept numbers in the state folder."""
_REFERENCE = "o200k_base"
"""The generation whose count replaces that of a model for which nothing was counted."""
_MAX_OWN_BYTES = 64 << 20
"""Maximum size of a user's configuration file. Claude Code keeps its history in the same file."""
_MAX_SHOWN = 4_000_000
"""Maximum size of an open file whose servers are shown, in characters."""
_MAX_SERVERS = 200
"""Maximum number of servers per file."""
_MAX_DEPTH = 20
"""Maximum number of levels of a JSON Schema in which keywords are dropped."""
_MAX_KEPT = 500
"""Maximum number of servers whose numbers are kept."""

_MODELS = (
    "gpt-5", "gpt-6", "claude-sonnet-4-5", "claude-sonnet-5", "gemini-2.5-pro", "qwen3-coder",
    "kimi-k2", "devstral-2512", "glm-5", "deepseek-v3",
)  # fmt: skip
"""A model of each generation that coding agents use."""

_FIELD = re.compile(r"\{(server|instructions|tools|tool|description)\}")
"""Matches a field in the template of a sent text."""

Sends = Literal["schemas", "lines", "server", "nothing"]
"""What an agent sends of a server's tools: each tool's schema, a line per tool, a line per server,
or nothing.
"""
SchemaFormat = Literal["anthropic", "chat", "responses", "gemini"]
"""The vendor's format in which an agent sends a tool's schema."""


class McpFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A configuration file that names servers."""

    paths: tuple[str, ...]
    """Where the file may be."""
    key: tuple[str, ...]
    """The key of the table or list of servers. `{start}` is the folder where the agent starts."""
    condition: str = ""
    """When the agent starts the servers, if it does not always do so."""

    @property
    def is_own(self) -> bool:
        """Whether the file belongs to the user, not to the project."""
        return self.paths[0].startswith(("$", "~", "{"))

    def find(self, start: Path, places: Places) -> tuple[Path, ...]:
        """Return the paths of the file, which may not exist."""
        if self.is_own:
            return places.in_use(self.paths)
        return tuple(start / path for path in self.paths)


class Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What an agent sends of a server's tools if it has no conditions, or one of them is met."""

    sends: Sends
    models: tuple[str, ...] = ()
    """Condition: the model matches one of these globs."""
    entry: dict[str, bool | str] = {}
    """Condition: the server's entry has one of these values."""
    variables: dict[str, str] = {}
    """Condition: an environment variable has this value."""
    text: str = "{tools}"
    """The text for a server, with the fields `{server}`, `{tools}` and `{instructions}`."""
    line: str = ""
    """The line for a tool, with the fields `{tool}` and `{description}`, which is one line."""
    instructions: str = ""
    """What is added if the server has instructions. It has the same fields as `text`."""
    description_limit: int | None = None
    """Maximum length of a tool's description, in characters."""
    instructions_limit: int | None = None
    """Maximum length of the server's instructions, in characters."""
    cut_mark: str = ""
    """What is put in place of the characters that are cut off."""
    once: int = 0
    """Tokens that any number of servers adds: headings, and the agent's tools that reach servers.
    Counted with `o200k_base`.
    """

    def applies(self, server: McpServer, model: str, env: Mapping[str, str]) -> bool:
        """Return whether the agent sends the server's tools in this form."""
        if not (self.models or self.entry or self.variables):
            return True
        return (
            bool(self.models and matches(model, self.models))
            or any(server.options.get(key) == value for key, value in self.entry.items())
            or any(env.get(name) == value for name, value in self.variables.items())
        )


class McpRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """How an agent finds MCP servers and sends their tools."""

    version: str
    """The version of the agent in which this was measured."""
    files: tuple[McpFile, ...]
    forms: tuple[Form, ...]
    """The first form that applies is used. The last one has no condition."""
    prefix: str = ""
    """What precedes a tool's name."""
    schema: SchemaFormat = "chat"
    kept_keys: frozenset[str] = frozenset()
    """The only keywords of JSON Schema that are sent. If empty, all are sent."""
    described_keys: tuple[str, ...] = ()
    """Keywords that are sent as part of the description instead."""
    added_schema: dict[str, Any] = {}
    """What the agent adds to each tool's schema."""
    reads_first_page_only: bool = False
    """Whether the agent ignores further pages of the list of tools."""
    only_key: str | None = None
    """The key of an entry that lists the only tools to send. `*` stands for all."""
    except_key: str | None = None
    """The key of an entry that lists the tools not to send."""


@cache
def mcp_rules() -> dict[str, McpRules]:
    """Return each agent's rules."""
    return typed.read_table("sidecar.project", "mcp_servers.toml", dict[str, McpRules])


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server in an agent's configuration."""

    agent: str
    name: str
    path: str
    """The configuration file."""
    is_own: bool
    """Whether the file belongs to the user. A project's server is only started with consent."""
    condition: str = ""
    """When the agent starts the server, such as `in a trusted project`."""
    command: tuple[str, ...] = ()
    """The command, or empty if the server is remote."""
    env: dict[str, str] = {}
    folder: str = ""
    """The working folder that the entry names."""
    url: str = ""
    headers: dict[str, str] = {}
    only: tuple[str, ...] = ()
    """The only tools that the agent sends. If empty, it sends all."""
    excluded: tuple[str, ...] = ()
    """The tools that the agent does not send."""
    options: dict[str, bool | str] = {}
    """The entry's other values, which `Form.entry` compares."""

    @property
    def digest(self) -> str:
        """A digest of everything that starts or reaches the server, whichever agent does it."""
        tables = [sorted(self.env.items()), sorted(self.headers.items())]
        return _digest([self.command, self.folder, self.url, *tables])

    @property
    def shown_command(self) -> str:
        """The command line, with the variables that the entry sets."""
        assignments = [f"{name}={value}" for name, value in self.env.items()]
        return shlex.join([*assignments, *self.command]) if self.command else self.url

    @property
    def shown_details(self) -> list[str]:
        """The working folder and the headers that the entry sets. Headers may contain keys."""
        details = [f"in the folder {self.folder}"] if self.folder else []
        return details + [f"with the header {name}" for name in self.headers if self.url]

    def sends_tool(self, name: str) -> bool:
        """Return whether the agent sends the tool with this name."""
        return (not self.only or name in self.only) and name not in self.excluded


def find_mcp_servers(agent: str, start: Path, places: Places) -> list[McpServer]:
    """Return the servers that an agent starts, in the order of its files. Never raises.

    Args:
        agent: The agent.
        start: The folder where the agent starts.
        places: The user's folders.
    """
    servers: dict[str, McpServer] = {}
    for file in mcp_rules()[agent].files if agent in mcp_rules() else ():
        for path in file.find(start, places):
            with suppress(OSError):
                text = _read(path, None if file.is_own else start)
                for server in read_mcp_servers(agent, file, path, text, start):
                    servers[server.name] = server
    return [server for server in servers.values() if server.command or server.url]


def _read(path: Path, root: Path | None) -> str:
    """Return a configuration file's text. Raises OSError."""
    if root is not None:
        return read_file(path, root).decode("utf-8-sig", "replace")
    with open_quietly(str(path)) as file:
        return file.read(_MAX_OWN_BYTES).decode("utf-8-sig", "replace")


def read_mcp_servers(
    agent: str, file: McpFile, path: Path, text: str, start: Path
) -> Iterator[McpServer]:
    """Yield the servers in a configuration file's text. A server that is off has no command."""
    value = _parse(text, is_toml=path.suffix == ".toml")
    for key in server_key(file, start):
        value = value.get(key) if isinstance(value, dict) else None
    for name, entry in list(_entries(value))[:_MAX_SERVERS]:
        yield _make_server(agent, file, path, name, entry)


def server_key(file: McpFile, start: Path) -> tuple[str, ...]:
    """Return the key of the servers in a file."""
    return tuple(str(start) if part == "{start}" else part for part in file.key)


def _parse(text: str, *, is_toml: bool) -> Any:
    """Return a document's value, or None if it is invalid."""
    if is_toml:
        with suppress(toml.InvalidTomlError):
            return toml.parse(text)
        return None
    for attempt in (str, without_comments):
        with suppress(msgspec.DecodeError):
            return typed.decode(attempt(text), object)
    return None


def _entries(value: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and entries in a table, or in a list of tables with names."""
    if isinstance(value, list):
        value = {one.get("name"): one for one in value if isinstance(one, dict)}
    for name, entry in value.items() if isinstance(value, dict) else ():
        if isinstance(name, str) and isinstance(entry, dict):
            yield name, entry


def _make_server(
    agent: str, file: McpFile, path: Path, name: str, entry: dict[str, Any]
) -> McpServer:
    rules = mcp_rules()[agent]
    command = _texts(entry.get("command")) + _texts(entry.get("args"))
    urls = [entry[key] for key in ("url", "httpUrl", "serverUrl") if entry.get(key)]
    only = _texts(entry.get(rules.only_key)) if rules.only_key else ()
    is_off = entry.get("enabled") is False or entry.get("disabled") is True
    return McpServer(
        agent=agent,
        name=name,
        path=str(path),
        is_own=file.is_own,
        condition=file.condition,
        command=() if is_off or not _texts(entry.get("command")) else command,
        env=_text_table(entry.get("env") or entry.get("environment")),
        folder=entry["cwd"] if isinstance(entry.get("cwd"), str) else "",
        url=urls[0] if urls and isinstance(urls[0], str) and not is_off else "",
        headers=_text_table(entry.get("headers") or entry.get("http_headers")),
        only=() if "*" in only else only,
        excluded=_texts(entry.get(rules.except_key)) if rules.except_key else (),
        options={key: one for key, one in entry.items() if isinstance(one, bool | str)},
    )


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def _text_table(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {str(name): one for name, one in value.items() if isinstance(one, str)}


class Tool(msgspec.Struct, frozen=True):
    """A tool of a server."""

    name: str
    description: str
    schema: dict[str, Any]


class ToolList(msgspec.Struct, frozen=True):
    """What a running server says about itself."""

    tools: tuple[Tool, ...]
    first_page: int
    """The number of tools on the first page of the list."""
    instructions: str = ""


def sent_text(server: McpServer, listed: ToolList, form: Form) -> str:
    """Return what an agent sends of a server's tools before the first word."""
    if form.sends == "nothing":
        return ""
    rules = mcp_rules()[server.agent]
    tools = listed.tools[: listed.first_page] if rules.reads_first_page_only else listed.tools
    prefix = rules.prefix.replace("{server}", server.name)
    texts = []
    for tool in tools:
        if not server.sends_tool(tool.name):
            continue
        name, description = prefix + tool.name, tool.description
        if form.sends == "schemas":
            description = _cut(description, form.description_limit, form.cut_mark)
            texts.append(as_json(_schema(rules, name, description, tool.schema)))
        else:
            description = _cut(_first_line(description), form.description_limit, form.cut_mark)
            texts.append(_fill(form.line, {"tool": name, "description": description}))
    instructions = _cut(listed.instructions.strip(), form.instructions_limit, form.cut_mark)
    fields = {
        "server": server.name,
        "tools": ("," if form.sends == "schemas" else "\n").join(texts),
        "instructions": _first_line(instructions) if form.sends == "server" else instructions,
    }
    added = [_fill(form.instructions, fields)] if instructions and form.instructions else []
    return "\n".join([_fill(form.text, fields), *added])


def _fill(template: str, fields: Mapping[str, str]) -> str:
    return _FIELD.sub(lambda found: fields.get(found[1], ""), template)


def _schema(rules: McpRules, name: str, description: str, schema: dict[str, Any]) -> object:
    sent = _sent_schema(schema, rules)
    sent |= rules.added_schema | {
        "properties": {**sent.get("properties", {}), **rules.added_schema.get("properties", {})}
    }
    named = {"name": name, "description": description}
    if rules.schema == "anthropic":
        return named | {"input_schema": sent}
    if rules.schema == "gemini":
        return named | {"parametersJsonSchema": sent}
    function = named | {"parameters": sent}
    if rules.schema == "responses":
        return {"type": "function", **function, "strict": False}
    return {"type": "function", "function": function}


def _sent_schema(schema: dict[str, Any], rules: McpRules, depth: int = 0) -> dict[str, Any]:
    """Return a JSON Schema with the keywords that an agent sends."""
    if depth > _MAX_DEPTH or not (rules.kept_keys or rules.described_keys):
        return dict(schema)

    def sent(value: Any) -> Any:
        if isinstance(value, list):
            return [sent(one) for one in value]
        return _sent_schema(value, rules, depth + 1) if isinstance(value, dict) else value

    kept = {
        key: {name: sent(one) for name, one in value.items()}
        if key in ("properties", "$defs") and isinstance(value, dict)
        else sent(value)
        for key, value in schema.items()
        if key not in rules.described_keys and (not rules.kept_keys or key in rules.kept_keys)
    }
    described = [f"{key}: {as_json(schema[key])}" for key in rules.described_keys if key in schema]
    if described:
        texts = [str(kept.get("description", "")), f"{{{', '.join(described)}}}"]
        kept["description"] = "\n\n".join(filter(None, texts))
    return kept


def _cut(text: str, limit: int | None, mark: str) -> str:
    return text if limit is None or len(text) <= limit else text[:limit] + mark


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


class KeptCount(msgspec.Struct, frozen=True):
    """A number of tokens, and how it was counted."""

    tokens: int
    method: Method


class KeptServer(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a server that was measured. They contain no text."""

    tools: int
    measured_at: str
    """When the server was measured, in ISO 8601."""
    counts: dict[str, dict[str, KeptCount]]
    """The tokens by form (see `form_key`) and by the model's generation."""


def form_key(server: McpServer, form: Form) -> str:
    """Return a key of everything besides the server's tools that determines the sent text."""
    rules = mcp_rules()[server.agent]
    sending = (
        msgspec.to_builtins(form),
        [
            *(rules.prefix, rules.schema, sorted(rules.kept_keys), rules.described_keys),
            *(rules.added_schema, rules.reads_first_page_only),
        ],
    )
    return _digest([sending, server.name, sorted(server.only), sorted(server.excluded)])


def read_kept(folder: Path) -> dict[str, KeptServer]:
    """Return the kept numbers by the server's digest. Never raises."""
    with suppress(OSError, msgspec.DecodeError):
        return typed.decode_leniently(read_file(folder / FILE_NAME), dict[str, KeptServer])
    return {}


def keep(folder: Path, measured: Mapping[str, KeptServer]) -> None:
    """Add numbers to the state folder. Raises OSError."""
    make_folder(folder)
    with lock_state(folder):
        kept = {**read_kept(folder), **measured}
        newest = sorted(kept.items(), key=lambda one: one[1].measured_at)[-_MAX_KEPT:]
        write(folder / FILE_NAME, msgspec.json.encode(dict(newest)))


def is_mcp_file(path: PurePath) -> bool:
    """Return whether a file has the name of one that may name servers."""
    return path.name in _file_names()


@cache
def _file_names() -> frozenset[str]:
    files = (file for rules in mcp_rules().values() for file in rules.files)
    return frozenset(path.rpartition("/")[2] for file in files for path in file.paths)


class ListedServer(NamedTuple):
    """A server in an open configuration file."""

    server: McpServer
    line: int
    """The line of its entry, starting at 0."""


def list_servers(path: Path, text: str, start: Path, places: Places) -> list[ListedServer]:
    """Return the servers in the text of a configuration file, for each agent that reads the file.

    Args:
        path: The file.
        text: The file's text. An editor may not have saved it.
        start: The folder where the agents start.
        places: The user's folders.
    """
    listed = list[ListedServer]()
    for agent, rules in mcp_rules().items() if len(text) <= _MAX_SHOWN else ():
        for file in rules.files:
            if path not in file.find(start, places):
                continue
            lines = _entry_lines(text, server_key(file, start), is_toml=path.suffix == ".toml")
            listed += [
                ListedServer(server, lines[server.name])
                for server in read_mcp_servers(agent, file, path, text, start)
                if (server.command or server.url) and server.name in lines
            ]
    return listed


def _entry_lines(text: str, key: tuple[str, ...], *, is_toml: bool) -> dict[str, int]:
    """Return the line of each entry in the table of servers, by its name."""
    if is_toml:
        keys = toml.find_spans(text)[1]
        inside = ((path, span) for path, span in keys.items() if path[:-1] == key)
        return {str(path[-1]): span.line - 1 for path, span in inside}
    with suppress(NotAnObjectError):
        table = parse_object(text)
        for part in key:
            member = table.find(part)
            if member is None:
                return {}
            table = parse_object(text, member.value_start)
        ends = [found.start() for found in re.finditer("\n", text)]
        return {member.key: bisect_left(ends, member.start) for member in table.members}
    return {}


class ServerTools(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent sends of a server's tools, in tokens."""

    server: McpServer
    sends: Sends
    tools: int | None
    """The number of the server's tools, or None if the server was not measured."""
    tokens: int | None
    """The tokens in each request, or None if they are unknown."""
    method: Method = "exact"
    once: int = 0
    """Tokens that the agent adds for any number of servers."""


def sent_tools(
    server: McpServer, model: str, kept: Mapping[str, KeptServer], env: Mapping[str, str]
) -> ServerTools:
    """Return what an agent sends of a server's tools.

    Args:
        server: The server.
        model: The agent's model.
        kept: The kept numbers.
        env: The user's environment variables, which change what some agents send.
    """
    measured = kept.get(server.digest)
    form = next(
        form for form in mcp_rules()[server.agent].forms if form.applies(server, model, env)
    )
    tools = measured.tools if measured else None
    counts = measured.counts.get(form_key(server, form), {}) if measured else {}
    count = counts.get(generation_of(model))
    if form.sends == "nothing":
        count = KeptCount(0, "exact")
    elif count is None and _REFERENCE in counts:
        count = KeptCount(counts[_REFERENCE].tokens, "estimate")
    return ServerTools(
        server=server,
        sends=form.sends,
        tools=tools,
        tokens=count.tokens if count else None,
        method=count.method if count else "exact",
        once=form.once,
    )


def count_tools_in_each_form(
    servers: Iterable[McpServer],
    listed: ToolList,
    models: Sequence[str],
    count: Callable[[str, str], Measure],
) -> dict[str, dict[str, KeptCount]]:
    """Count what every agent would send of a running server's tools.

    Agents in whose configuration the server is missing are included, so that a user can compare.

    Args:
        servers: The entries that start the server. They may have different names and filters.
        listed: The server's tools.
        models: The models to count for, at most one per generation.
        count: Counts a text for a model.

    Returns:
        `KeptServer.counts`.
    """
    counts: dict[str, dict[str, KeptCount]] = {}
    for server in servers:
        for agent, rules in mcp_rules().items():
            entry = msgspec.structs.replace(server, agent=agent)
            for form in rules.forms:
                key = form_key(entry, form)
                if key not in counts and form.sends != "nothing":
                    text = sent_text(entry, listed, form)
                    measures = {generation_of(model): count(text, model) for model in models}
                    counts[key] = {
                        generation: KeptCount(measure.tokens, measure.method)
                        for generation, measure in measures.items()
                    }
    return counts


def count_and_keep(
    folder: Path, servers: Sequence[McpServer], listed: ToolList, settings: Settings
) -> KeptServer:
    """Count a running server's tools, and add the numbers to the state folder.

    Args:
        folder: The state folder.
        servers: The entries that start the server.
        listed: The server's tools.
        settings: The settings, which choose tokenizers.

    Raises:
        OSError: The numbers cannot be written.
    """
    from sidecar.counting.open_documents import Snapshot
    from sidecar.counting.tokenizer_choice import local_counters

    _, choose = local_counters(settings)

    def count(text: str, model: str) -> Measure:
        return choose(Snapshot(text=text), model).measure(text)

    measured = KeptServer(
        tools=len(listed.tools),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        counts=count_tools_in_each_form(servers, listed, _MODELS, count),
    )
    keep(folder, {servers[0].digest: measured})
    return measured


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:32]
