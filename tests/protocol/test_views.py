"""Tests that all views of the same sessions, costs and files print the same text for a number."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks.agents import claude
from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.truth import Tokens
from sidecar.agents.claude_statusline import Quota, RateLimits, StatuslineInput, save
from sidecar.cli import main
from sidecar.config.paths import state_dir
from sidecar.mcp.open_project import Caller, Project
from sidecar.mcp.tools import Call, Tools
from tests.cases import read_table
from tests.protocol.client import Client

MODEL, UNPRICED = "claude-opus-5", "acme-coder"
FILE = "CLAUDE.md"
VIEWS = read_table("views")
WORDS = VIEWS.pop("words")
RATE_LIMITS = RateLimits(five_hour=Quota(5.0, (datetime.now(UTC) + timedelta(hours=2)).timestamp()))


def run(*arguments: str, sent: Any = None) -> str:
    text = "" if sent is None else json.dumps(sent)
    result = CliRunner().invoke(main, arguments, input=text)
    assert result.exit_code == 0, result.output
    return result.output.rstrip("\n")


def reply(
    session: claude.Transcript, model: str, tokens: int, *, loses_cache: bool = False
) -> None:
    session.model, cached = model, tokens - 503
    read, written = (0, cached) if loses_cache else (cached, 0)
    session.reply(usage=claude.usage(Tokens(3, read, written, 0, 500)))


def check_out(root: Path, branch: str) -> None:
    """Check out a branch that may have no commits."""
    subprocess.run(["git", "-C", root, "symbolic-ref", "HEAD", f"refs/heads/{branch}"], check=True)


def write_world(root: Path, *, is_marked: bool) -> claude.Transcript:
    """Write a session and prompt files.

    Args:
        root: The project's folder.
        is_marked: Whether the context is an estimate, and the costs are lower bounds.
    """
    subprocess.run(["git", "init", "-q", "-b", "main", root], check=True)
    (root / FILE).write_text("Rules for this project. " * 299 + "Rules.")
    home = ClaudeHome(root.parents[1] / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(minutes=20)
    session = home.session(root)
    session.user()
    session.model = MODEL
    session.subagent()
    reply(session, MODEL, 580_000)
    reply(session, MODEL, 581_000, loses_cache=True)
    reply(session, MODEL, 590_000)
    save(state_dir(), StatuslineInput(session_id=session.id, rate_limits=RATE_LIMITS))
    if is_marked:
        reply(session, UNPRICED, 50_000)
        reply(session, MODEL, 95_000)
        sizes = {"trigger": "auto", "preTokens": 95_000, "postTokens": 41_000}
        session.write(session.line("system", subtype="compact_boundary", compactMetadata=sizes))
    return session


async def texts_in_editor(client: Client, root: Path) -> dict[str, str]:
    """Return the text of each view in an editor, after the costs have been read."""
    document, where = {"uri": (root / FILE).as_uri()}, {"workspace": root.as_uri()}
    await client.initialize(root.as_uri(), ignored=("context/warning",))
    client.open((root / FILE).read_text(), document["uri"])
    status = await client.take(
        "status/update",
        lambda one: (
            all(one[part] for part in ("document", "context", "cost"))
            and "as input" in one["document"]["tooltip"]
            and "1 sub-agent $" in one["cost"]["tooltip"]  # the sub-agent's file has been read
            and "5-hour limit" in one["cost"]["tooltip"]
        ),
    )
    client.ignore("status/update")
    usage = await client.request("context/usage", where | {"contents": True})
    (row,) = await client.request("context/sessions", where | {"all": True})
    by_session = where | {"by": ["session"], "charts": True}
    by_branch = where | {"by": ["branch"], "charts": True}
    by_loss = where | {"by": ["cache-loss"], "charts": True}
    at = {"line": 0, "character": 0}
    hover = await client.request("textDocument/hover", {"textDocument": document, "position": at})
    (file,) = await client.request("cost/files", where)
    count = await client.count(document["uri"], models=[MODEL])
    pages = {
        name: (await client.request(method, params))["html"]
        for name, method, params in (
            ("page", "context/page", where),
            ("report's page", "cost/page", where),
            ("report's page by session", "cost/page", where | {"by": "session"}),
        )
    }
    parts = (status[part]["tooltip"] for part in ("document", "context", "cost"))
    return {
        "status": status["text"],
        "tooltip": "\n".join(parts),
        "view and float": usage["text"],
        "list in an editor": row["detail"],
        "list in VS Code": row["figures"],
        "list in a terminal": row["text"],
        "report": (await client.request("cost/detail", by_session))["overview"],
        "report by branch": (await client.request("cost/detail", by_branch))["overview"],
        "report by cache-loss": (await client.request("cost/detail", by_loss))["overview"],
        "hover": hover["contents"]["value"],
        "prompt files": file["text"],
        "comparison": count["text"],
        **{name: re.sub(r"(<[^>]*>)+", "|", html) for name, html in pages.items()},
    }


def texts_in_terminal(session: claude.Transcript) -> dict[str, str]:
    """Return what each command prints."""
    sent = {
        "session_id": session.id,
        "transcript_path": str(session.path),
        "model": {"id": MODEL},
        "workspace": {"project_dir": session.cwd},
        "rate_limits": msgspec.to_builtins(RATE_LIMITS),
    }
    return {
        "usage": run("usage"),
        "list in a terminal": run("usage", "--all"),
        "statusline": run("statusline"),
        "statusline of Claude Code": run("statusline", sent=sent),
        # The numbers that `count` prints have no separators.
        "count": re.sub(r"(\d)(?=\d{3} )", r"\1,", run("count", FILE, "--model", MODEL)),
        "map": run("map", "--model", MODEL),
        "cost files": run("cost", "files"),
        "check": run("check", ".", "--format", "markdown", "--branch-cost"),
        "footprint": run("footprint"),
    }


async def texts_in_agent(session: claude.Transcript, root: Path) -> dict[str, str]:
    """Return the answer of each MCP tool."""
    tools, call = Tools(Project(root)), Call(Caller("claude-code", (session.id,)))
    arguments = {"token_map": {"folder": "."}, "count_tokens": {"path": FILE}}
    names = "context_usage", "spend", "token_map", "count_tokens"
    texts = {
        f"MCP {name}": (await tools.run(name, arguments.get(name, {}), call)).text for name in names
    }
    await tools.aclose()
    return texts


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "home" / "work" / "app"
    root.mkdir(parents=True)
    monkeypatch.chdir(root)
    return root


@pytest.mark.parametrize("is_marked", [False, True], ids=["exact", "estimate and lower bound"])
async def test_every_view_prints_the_same_text(
    bare: Client, project: Path, is_marked: bool
) -> None:
    root = project
    session = write_world(root, is_marked=is_marked)
    texts = await texts_in_editor(bare, root)
    texts |= await asyncio.to_thread(texts_in_terminal, session)
    texts |= await texts_in_agent(session, root)
    for name, views in VIEWS.items():
        if is_marked and name in ("cold input", "compacting"):
            continue  # nothing is known about the cache after a compaction
        printed = {
            view: [
                *re.findall(pattern_of(pattern), texts[view.partition(",")[0]], re.MULTILINE),
                None,
            ][0]
            for view, pattern in views.items()
        }
        text = printed.popitem()[1]
        assert {view: other for view, other in printed.items() if other != text} == {}, name
        assert text is not None, (name, texts)
        unmarked = "cost of a lost cache", "cost of sub-agents", "context of a sub-agent"
        signs = {"cost": "≥" * is_marked} | dict.fromkeys(unmarked, "")
        is_estimate = (is_marked and name != "limit") or name in ("file", "price of the file")
        expected = signs.get(name, "~" * is_estimate)
        assert re.sub(r"[^≥~]", "", text) == expected, (name, text)


def pattern_of(text: str) -> str:
    """Replace the words in braces by their patterns."""
    return re.sub(r"\{([A-Z]+)\}", lambda found: WORDS[found[1]], text)


async def take_tooltip(client: Client, text: str) -> None:
    """Wait until the tooltip of the cost contains a text."""
    await client.take("status/update", lambda one: text in str(one["cost"]))


async def test_the_branch_in_the_tooltip_follows_a_checkout(bare: Client, project: Path) -> None:
    session = write_world(project, is_marked=False)
    session.branch = "topic"
    reply(session, MODEL, 1_000)
    await bare.initialize(project.as_uri(), ignored=("context/warning",))
    for branch in ("main", "topic", "main"):
        await asyncio.to_thread(check_out, project, branch)
        await take_tooltip(bare, f"(1 session) on {branch} |")
    bare.ignore("status/update")


async def test_a_running_sub_agent_is_shown(bare: Client, project: Path) -> None:
    session = write_world(project, is_marked=False)
    await bare.initialize(project.as_uri(), ignored=("context/warning",))
    await take_tooltip(bare, "1 sub-agent $")
    session.clock.now = datetime.now(UTC)
    message = session.message("msg_running", Tokens(3, 900, 100, 0, 40), last=False)
    line = session.line("assistant", message=message) | {"isSidechain": True}
    session.write(line, path=session.project / session.id / "subagents" / "agent-running.jsonl")
    await take_tooltip(bare, ", 1 running |")
    (row,) = await bare.request("context/sessions", {"workspace": project.as_uri()})
    assert row["state"] == "running"
    usage = await bare.request("context/usage", {"workspace": project.as_uri()})
    assert [one["state"] for one in usage["subagents"]] == ["running", "idle"]
    assert [one["tokens"] for one in usage["subagents"]] == [1_043, 1_043]
    bare.ignore("status/update")
