"""Tests `token-sidecar mcp` with the MCP SDK's client, in both versions of the protocol.

Most tests run the server in this process, because a process for each takes longer than the test.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from pydantic import FileUrl

from benchmarks.agents.claude import ClaudeHome
from sidecar.agents.session_index import LOCK_NAME
from sidecar.config.paths import config_file, state_dir
from sidecar.config.safe_files import make_folder
from sidecar.cost.ledger import FILE_NAME
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.mcp.mcp_server import create_server
from sidecar.mcp.open_project import BEING_READ
from sidecar.mcp.schemas import TOOLS, describe_tools

PROGRAM = str(Path(sys.executable).with_name("token-sidecar"))
ERAS = pytest.mark.parametrize("era", ["legacy", "2026-07-28"])


@asynccontextmanager
async def connected(
    project: Path,
    era: str = "legacy",
    client: str = "test",
    roots: list[Path] | None = None,
    *,
    in_process: bool = True,
) -> AsyncIterator[Client]:
    """Connect a client to a server in this process, or to `token-sidecar mcp`."""
    command = StdioServerParameters(
        command=PROGRAM, args=["mcp"], cwd=project, env={**os.environ, "HOME": str(project.parent)}
    )
    server = create_server(project) if in_process else command

    async def list_roots(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(
            roots=[types.Root(uri=FileUrl(path.as_uri())) for path in roots or ()]
        )

    async with Client(
        server,
        mode=era,
        client_info=types.Implementation(name=client, version="1"),
        list_roots_callback=list_roots if roots is not None else None,
        read_timeout_seconds=60,
    ) as connection:
        yield connection


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a small budget, and a home folder of its own."""
    folder = tmp_path / "project"
    (folder / "docs").mkdir(parents=True)
    (folder / ".token-sidecar.toml").write_text(
        'model = "gpt-4o"\n[[budget]]\nfiles = "AGENTS.md"\nmax-tokens = 10\n'
    )
    (folder / "AGENTS.md").write_text("Be brief and kind. " * 10)
    (folder / "docs/a.md").write_text("hello world\n" * 50)
    (folder / "docs/b.bin").write_bytes(b"\0\1\2")
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


@pytest.fixture
def home(tmp_path: Path) -> ClaudeHome:
    """Claude Code, whose sessions begin now."""
    made = ClaudeHome(tmp_path / ".claude")
    made.clock.now = datetime.now(UTC)
    return made


def text_of(result: types.CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    return content.text


def data_of(result: types.CallToolResult) -> dict[str, Any]:
    """Return the structured content of an answer."""
    assert result.structured_content is not None
    return dict(result.structured_content)


async def printed(project: Path, *command: str) -> Any:
    """Return the JSON output of a command that runs in the project."""
    process = await asyncio.create_subprocess_exec(
        PROGRAM, *command, cwd=project, stdout=subprocess.PIPE
    )
    return json.loads((await process.communicate())[0])


def tokens_of(text: str) -> int:
    return Tokenizers().for_model("gpt-4o").count(text)


def exchange(project: Path, text: str) -> tuple[dict[str, Any], str]:
    """Count a text, written as JSON, in a process. Return the answer and the log."""
    opening = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    call = {"name": "count_tokens", "arguments": {"text": "TEXT"}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": opening},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": call},
        {"id": 3, "method": "ping"},
    ]
    sent = "".join(json.dumps({"jsonrpc": "2.0", **one}) + "\n" for one in messages)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [PROGRAM, "mcp"], cwd=project, stdin=pipe, stdout=pipe, stderr=pipe
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(sent.replace("TEXT", text).encode())
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in range(3)]
        _, errors = server.communicate(timeout=60)
    by_id = {answer["id"]: answer["result"] for answer in answers}
    return dict(by_id[2]["structuredContent"]), errors.decode()


@pytest.mark.parametrize("half", [r"\ud82d", r"\uDE00", r"\\\uD83D"])
def test_half_a_character_in_a_request_is_answered(project: Path, half: str) -> None:
    """`JSON.stringify` writes these escapes when a model's text ends inside an emoji."""
    answer, _ = exchange(project, f"smile {half}")
    shown = json.loads(f'"smile {half}"').replace(
        json.loads(f'"{half}"')[-1], "\N{REPLACEMENT CHARACTER}"
    )
    assert answer["tokens"] == tokens_of(shown)


def test_the_schemas_take_at_most_300_tokens() -> None:
    result = subprocess.run([PROGRAM, "mcp", "--schemas"], capture_output=True, check=True)
    printed = json.loads(result.stdout)
    assert printed == describe_tools()
    assert tokens_of(json.dumps(printed, separators=(",", ":"))) <= 300


@ERAS
async def test_the_tools_are_listed_as_read_only(project: Path, era: str) -> None:
    async with connected(project, era, in_process=False) as client:
        listed = (await client.list_tools()).tools
    assert {tool.name for tool in listed} == set(TOOLS)
    for tool in listed:
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint
    described = [
        {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
        for tool in listed
    ]
    assert described == describe_tools()


@ERAS
async def test_files_folders_and_texts_have_the_counts_of_the_count_command(
    project: Path, era: str
) -> None:
    async with connected(project, era, in_process=False) as client:
        file = await client.call_tool("count_tokens", {"path": "docs/a.md"})
        folder = await client.call_tool("count_tokens", {"path": "."})
        text = await client.call_tool("count_tokens", {"text": "hello world"})
    output = await printed(project, "count", "--json", ".")
    by_path = {entry["path"]: entry["tokens"] for entry in output["files"]}
    assert data_of(file)["tokens"] == by_path["docs/a.md"]
    assert data_of(folder)["tokens"] == output["total"]["tokens"]
    assert data_of(text)["tokens"] == 2
    assert text_of(file).startswith(f"docs/a.md: {by_path['docs/a.md']:,} tokens for gpt-4o")


async def test_a_map_has_the_sums_of_the_count_command(project: Path) -> None:
    async with connected(project) as client:
        found = data_of(await client.call_tool("token_map", {"depth": 2}))
    entries = {entry["path"]: entry["tokens"] for entry in found["entries"]}
    assert entries["docs/"] == entries["docs/a.md"]
    top = sum(tokens for path, tokens in entries.items() if path.count("/") == path.endswith("/"))
    assert found["tokens"] == top


async def test_estimates_in_lists_are_marked(project: Path) -> None:
    config = project / ".token-sidecar.toml"
    config.write_text(config.read_text().replace("gpt-4o", "claude-opus-5"))
    async with connected(project) as client:
        listed = text_of(await client.call_tool("token_map", {}))
        folder = text_of(await client.call_tool("count_tokens", {"path": "."}))
    for text in (listed, folder):
        entries = [line for line in text.splitlines() if line.rpartition(" ")[2].endswith(".md")]
        assert entries
        assert all(entry.startswith("~") for entry in entries), text


async def test_budgets_that_are_nearly_used_up_are_not_called_exceeded(project: Path) -> None:
    (project / ".token-sidecar.toml").write_text(
        '[[budget]]\nfiles = "docs/a.md"\nmax-tokens = 1\n'
        '[[budget]]\nfiles = "near.md"\nmax-tokens = 10\n'
    )
    (project / "near.md").write_text("a" + " a" * 8)
    async with connected(project) as client:
        text = text_of(await client.call_tool("check_budgets", {}))
    assert re.match(r"1 budget exceeded, 1 near; \d+ files checked\.\n", text)


async def test_budgets_are_those_of_the_check_command(project: Path) -> None:
    async with connected(project, in_process=False) as client:
        result = await client.call_tool("check_budgets", {})
        within = await client.call_tool("check_budgets", {"paths": ["docs"]})
    report = await printed(project, "check", "--json", ".")
    (reported,) = [finding for file in report["files"] for finding in file["findings"]]
    (finding,) = data_of(result)["findings"]
    assert finding["over"] == reported["over"]
    assert text_of(result).startswith("1 budget exceeded; ")
    assert data_of(within)["exceeded"] == 0


@pytest.mark.parametrize("is_absolute", [True, False])
async def test_a_linked_file_has_the_budget_of_its_path(project: Path, is_absolute: bool) -> None:
    (project / ".token-sidecar.toml").write_text(
        '[[budget]]\nfiles = ["linked.md", "l/*"]\nmax-tokens = 1\n'
    )
    (project / "linked.md").symlink_to("docs/a.md")
    (project / "l").symlink_to("docs", target_is_directory=True)
    async with connected(project) as client:
        for path in ("linked.md", "l/a.md", "docs/../linked.md"):
            named = str(project / path) if is_absolute else path
            report = await printed(project, "check", "--json", named)
            (finding,) = report["files"][0]["findings"]
            result = await client.call_tool("check_budgets", {"paths": [named]})
            size = await client.call_tool("count_tokens", {"path": named})
            (found,) = data_of(result)["findings"]
            shown = path.removeprefix("docs/../")
            assert (found["path"], found["tokens"]) == (shown, finding["tokens"])
            assert data_of(size)["tokens"] == finding["tokens"]


BAD_CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("count_tokens", {"path": "../secret"}, "is outside the project"),
    ("count_tokens", {"path": "link"}, "is outside the project"),
    ("count_tokens", {"path": "/etc/passwd"}, "is outside the project"),
    ("count_tokens", {"path": "missing"}, "No such file"),
    ("count_tokens", {"path": "pipe"}, "is not a regular file"),
    ("count_tokens", {"path": "docs/b.bin"}, "binary file"),
    ("count_tokens", {"path": "a\0b"}, "cannot read"),
    ("count_tokens", {}, "pass either `path` or `text`"),
    ("count_tokens", {"path": 3}, "Expected `str | null`, got `int`"),
    ("fit_to_budget", {"path": "docs", "max_tokens": 3}, "there is no tool named"),
    ("token_map", {"depth": 99}, "depth must be between"),
    ("nothing", {}, "there is no tool named nothing"),
]


async def test_bad_calls_are_errors_and_the_server_keeps_running(project: Path) -> None:
    (project.parent / "secret").write_text("secret words")
    (project / "link").symlink_to(project.parent / "secret")
    os.mkfifo(project / "pipe")
    async with connected(project, in_process=False) as client:
        for tool, arguments, message in BAD_CALLS:
            refused = await client.call_tool(tool, arguments)
            assert refused.is_error, arguments
            assert message in text_of(refused)
            alive = await client.call_tool("count_tokens", {"text": "hello world"})
            assert not alive.is_error, arguments


@pytest.mark.parametrize("name", ["x" * 10_000, "a b\n\x1b" * 3_000])
async def test_long_names_are_quoted_only_in_part(project: Path, name: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        (name, {}),
        ("count_tokens", {"path": name}),
        ("count_tokens", {name: 1}),
        ("token_map", {"folder": f"../{name}"}),
        ("check_budgets", {"paths": [name]}),
    ]
    async with connected(project, client=name) as client:
        for tool, arguments in calls:
            refused = await client.call_tool(tool, arguments)
            assert refused.is_error
            assert len(text_of(refused)) < 600
        for tool in ("context_usage", "spend"):
            answer = await client.call_tool(tool, {})
            assert "No session was found for" in text_of(answer)
            assert len(answer.model_dump_json()) < 1_500


async def test_a_root_of_the_client_may_be_read(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "c.md").write_text("hello")
    async with connected(project, roots=[other]) as client:
        result = await client.call_tool("count_tokens", {"path": str(other / "c.md")})
    assert not result.is_error, text_of(result)


async def test_answers_are_short(project: Path) -> None:
    for number in range(400):
        name = f"{number}_{'Zx7' * 20}.md"
        (project / "docs" / name).write_text(f"word {number}\n" * 20)
    async with connected(project) as client:
        for tool, arguments in (
            ("token_map", {"depth": 3}),
            ("count_tokens", {"path": "."}),
            ("check_budgets", {}),
        ):
            result = await client.call_tool(tool, arguments)
            assert tokens_of(text_of(result)) <= 500, tool
            written = json.dumps(data_of(result), separators=(",", ":"))
            assert tokens_of(written) <= 800, tool
        more = await client.call_tool("token_map", {"depth": 3})
    assert "omitted; try a smaller folder" in text_of(more)


def add_reply(home: ClaudeHome, session: Any) -> None:
    home.clock.now = datetime.now(UTC)
    session.user()
    session.reply()


def add_tool_call(home: Path, session: Any) -> None:
    (path,) = home.glob(f".claude/projects/*/{session.id}.jsonl")
    with path.open("a") as file:
        file.write(json.dumps({"type": "progress", "toolUseID": "toolu_mine"}) + "\n")


@pytest.mark.parametrize("named_by", ["variable", "tool call", "late tool call"])
async def test_the_callers_own_session_is_shown_beside_a_newer_one(
    project: Path, home: ClaudeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    own, other = home.session(project), home.session(project)
    add_reply(home, own)
    add_reply(home, other)
    add_reply(home, other)
    meta: Any = {}
    # An outer Claude Code's variable names the other session, unless the variable is tested.
    monkeypatch.setenv("CLAUDE_CODE_SESSION_ID", own.id if named_by == "variable" else other.id)
    monkeypatch.setenv("QWEN_CODE_SESSION_ID", other.id)
    if named_by != "variable":
        meta = {"claudecode/toolUseId": "toolu_mine"}
    async with connected(project, client="claude-code") as client:
        await client.call_tool("context_usage", {})
        if named_by == "tool call":
            add_tool_call(tmp_path, own)
        asked = asyncio.create_task(client.call_tool("context_usage", {}, meta=meta))
        if named_by == "late tool call":
            await asyncio.sleep(0.1)
            add_reply(home, own)
            add_tool_call(tmp_path, own)
        result = await asked
        counted = await client.call_tool("count_tokens", {"text": "hello world"}, meta=meta)
    found = data_of(result)
    assert (found["session"]["id"], found["tokens"]) == (own.id, home.truth.context[own.id])
    assert f"{home.truth.context[own.id]:,} tokens" in text_of(result)
    assert None not in found.values()
    assert data_of(counted)["model"] == "gpt-4o"  # configured


@pytest.mark.parametrize("configured", ["gpt-4o", "claude-opus-4-5", None])
@pytest.mark.parametrize("argument", [None, "gpt-3.5-turbo"])
async def test_a_configured_model_is_used_before_the_sessions(
    project: Path, home: ClaudeHome, configured: str | None, argument: str | None
) -> None:
    written = f'model = "{configured}"\n' if configured else ""
    (project / ".token-sidecar.toml").write_text(written)
    add_reply(home, home.session(project))
    named = {"model": argument} if argument else {}
    async with connected(project, client="claude-code") as client:
        session = data_of(await client.call_tool("context_usage", {}))
        mapped = data_of(await client.call_tool("token_map", {}))
        counted = await client.call_tool("count_tokens", {"path": "docs/a.md", **named})
    assert session["model"] not in (configured, argument)
    default = configured or session["model"]
    assert mapped["model"] == default
    assert data_of(counted)["model"] == (argument or default)
    assert data_of(counted)["contextPercent"] > 0
    assert f"for {argument or default}" in text_of(counted)


async def test_spend_has_the_costs_of_usage_and_the_caps(project: Path, home: ClaudeHome) -> None:
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_text("[cost]\nsession-soft-cap-usd = 2\nhard-cap-usd = 70\n")
    session, other = home.session(project), home.session(project)
    add_reply(home, other)
    add_reply(home, session)
    async with connected(project, client="claude-code", in_process=False) as client:
        result = await client.call_tool("spend", {})
        usage = data_of(await client.call_tool("context_usage", {}))
    found = data_of(result)
    assert found["session"] == {"usd": usage["costUsd"], "softCapUsd": 2.0}
    assert found["project"]["usd"] > found["session"]["usd"]
    assert found["today"] == {"usd": found["project"]["usd"], "hardCapUsd": 70.0}
    assert "soft cap $2.00" in text_of(result)
    assert "hard cap $70.00" in text_of(result)
    assert 0 < usage["tokensUntilCompaction"] < usage["limit"] - usage["tokens"]


async def test_spending_is_a_lower_bound_while_another_process_reads_calls(
    project: Path, home: ClaudeHome
) -> None:
    unread = home.session(project)
    unread.reply()
    os.utime(unread.path, (0, 0))
    home.session(project).reply()
    make_folder(state_dir())
    with closing(sqlite3.connect(state_dir() / LOCK_NAME, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        async with connected(project, client="claude-code") as client:
            found = data_of(await client.call_tool("spend", {}))
    assert all(found[span]["isLowerBound"] for span in ("session", "project", "today"))
    assert found["notes"] == [BEING_READ]


async def test_spend_adds_up_the_sessions_on_the_callers_branch(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = ClaudeHome(tmp_path / ".claude")
    sessions = {branch: add_session(home, project, branch) for branch in ("side", "HEAD", "main")}
    own = add_session(home, project, "main")
    monkeypatch.setenv("CLAUDE_CODE_SESSION_ID", own)
    async with connected(project, client="claude-code") as client:
        result = await client.call_tool("spend", {})
    rows = {row["id"]: row["costUsd"] for row in await printed(project, "usage", "--all", "--json")}
    found = data_of(result)
    assert found["session"]["usd"] == rows[own]
    usd = pytest.approx(rows[own] + rows[sessions["main"]])
    assert found["branch"] == {"name": "main", "sessions": 2, "usd": usd}
    assert found["project"]["usd"] == pytest.approx(sum(rows.values()))
    assert re.search(r"^Branch main: \$[\d.]+ \(2 sessions\)$", text_of(result), re.MULTILINE)


def add_session(home: ClaudeHome, project: Path, branch: str) -> str:
    """Add a session on a branch, and return its id."""
    session = home.session(project)
    add_reply(home, session)
    (path,) = home.folder.glob(f"projects/*/{session.id}.jsonl")
    path.write_text(path.read_text().replace('"main"', f'"{branch}"'))
    return session.id


async def test_sentences_that_matter_are_in_both_halves(project: Path, home: ClaudeHome) -> None:
    (project / ".token-sidecar.toml").write_text("")
    async with connected(project, client="codex-mcp-client") as client:
        missing = await client.call_tool("context_usage", {})
        unspent = await client.call_tool("spend", {})
        unbudgeted = await client.call_tool("check_budgets", {})
    session = home.session(project)
    add_reply(home, session)
    session.user()
    async with connected(project, client="unheard-of") as client:
        guessed = await client.call_tool("context_usage", {})
    for result, sentence in (
        (missing, "No session was found for codex"),
        (unspent, "No session was found for codex"),
        (unbudgeted, "No budgets are configured"),
        (guessed, "unheard-of is unknown"),
    ):
        assert sentence in text_of(result)
        assert any(sentence in note for note in data_of(result)["notes"])


async def test_an_unreadable_ledger_is_reported(project: Path, home: ClaudeHome) -> None:
    session = home.session(project)
    session.user()
    session.reply()
    ledger = state_dir() / FILE_NAME
    ledger.parent.mkdir(parents=True)
    ledger.write_bytes(b"not a database" * 999)
    async with connected(project, client="claude-code", in_process=False) as client:
        found = data_of(await client.call_tool("context_usage", {}))
        shown = text_of(await client.call_tool("context_usage", {}))
    assert found["tokens"] == home.truth.context[session.id]
    problem = f"The cost is unknown: the ledger {ledger} is damaged"
    assert sum(note.startswith(problem) for note in found["notes"]) == 1
    assert all(note in shown for note in found["notes"])
    assert "being read" not in shown


async def test_a_cancelled_call_leaves_the_server_usable(project: Path) -> None:
    for number in range(3_000):
        (project / f"{number}.md").write_text("some words here\n" * 200)
    async with connected(project, in_process=False) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.call_tool("token_map", {}), 0.15)
        alive = await client.call_tool("count_tokens", {"text": "hello world"})
    assert not alive.is_error


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "mcp_types.py").write_text("raise ModuleNotFoundError(name='mcp_types')\n")
    command = [sys.executable, "-m", "sidecar", "mcp", "--check"]
    assert subprocess.run(command, check=False).returncode == 0
    result = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "pipx inject --force token-sidecar '.[mcp]'" in result.stderr


def test_no_text_reaches_the_log(project: Path) -> None:
    answer, errors = exchange(project, "PLANTED secret")
    assert answer["tokens"] > 0
    assert "PLANTED" not in errors
    kept = [path for path in project.parent.rglob("*") if path.is_file()]
    assert not any(b"PLANTED" in path.read_bytes() for path in kept)
