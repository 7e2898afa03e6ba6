"""Tests `context/footprint`, and that the command line and MCP print the same."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.agents.claude import ClaudeHome
from sidecar.cli import main
from sidecar.mcp.open_project import Caller, Project
from sidecar.mcp.tools import Call, Tools
from tests.protocol.client import Client, RpcError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in which Claude Code has worked, with a hidden file."""
    root = tmp_path / "home" / "work" / "app"
    (root / "pkg").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "CLAUDE.md").write_text("Rules for this project. " * 30)
    (root / "AGENTS.md").write_text("Be brief.")
    home = ClaudeHome(tmp_path / "home" / ".claude")
    home.clock.now = datetime(2039, 1, 1, tzinfo=UTC)  # after the files were written
    session = home.session(root)
    session.user()
    session.reply()
    monkeypatch.chdir(root)
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)


def printed(*arguments: str) -> Any:
    result = CliRunner().invoke(main, ["footprint", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


async def test_every_view_shows_the_same_footprint(bare: Client, root: Path) -> None:
    await bare.initialize(root.as_uri(), ignored=("status/update",))
    report = await bare.request("context/footprint", {"workspace": root.as_uri()})
    (agent,) = report["agents"]
    assert agent["measured"]["tokens"] == sum(part["tokens"] for part in agent["parts"])
    assert json.loads(await asyncio.to_thread(printed, "--json")) == report
    assert agent["text"] in await asyncio.to_thread(printed)
    tools, call = Tools(Project(root)), Call(Caller("claude-code"))
    answer = await tools.run("context_usage", {"footprint": True}, call)
    await tools.aclose()
    assert answer.text == agent["text"]
    assert (answer.data["tokens"], answer.data["left"]) == (agent["tokens"], 0)
    assert [part["label"] for part in answer.data["parts"]] == [
        part["label"] for part in agent["parts"]
    ]


async def test_the_page_shows_every_part_and_its_state(bare: Client, root: Path) -> None:
    bare.ignore("status/update")
    (root / "CLAUDE.md").unlink()
    (root / "AGENTS.md").write_text("x" * 40_000)
    (root / "AGENTS.override.md").write_text("<b>Be brief.</b>")
    await bare.initialize(root.as_uri())
    report = await bare.request("context/footprint", {"agent": "codex", "width": 60})
    page = await bare.request("context/footprintPage", {"agent": "codex"})
    (agent,) = report["agents"]
    shown = re.findall(
        r'scope="row">(.*?)</th><td[^>]*>(.*?)</td><td[^>]*>(.*?)</td>', page["html"]
    )
    assert [(label, state) for label, _, state in shown] == [
        (part["label"], part["stateText"]) for part in agent["parts"]
    ]
    assert ("AGENTS.md", "", "hidden by AGENTS.override.md") in shown
    assert f"<h2>{agent['title']} {agent['version']}</h2>" in page["html"]
    assert report["nextStep"].replace("`", "") in page["html"].replace("`", "")
    assert report["text"].endswith(report["nextStep"])
    table = report["text"].split("\n\n")[0].splitlines()[1:]
    assert table
    assert all(len(line) <= 60 for line in table)


async def test_the_context_page_shows_what_agents_load_before_the_first_session(
    bare: Client, root: Path
) -> None:
    bare.ignore("status/update", "context/warning")
    other = root.parent / "other"
    other.mkdir()
    (other / "CLAUDE.md").write_text("Be brief.")
    await bare.initialize(other.as_uri())
    page = await bare.request("context/page", {})
    assert "No conversation found" in page["html"]
    assert ">CLAUDE.md</th>" in page["html"]
    assert ".states" in page["style"]
    await bare.request(
        "context/append", {"session": "s", "turns": [{"role": "user", "content": "Hi"}]}
    )
    page = await bare.request("context/page", {"session": "s"})
    assert "<th" not in page["html"]
    await bare.request("context/reset", {"session": "s"})
    assert ">CLAUDE.md</th>" in (await bare.request("context/page", {}))["html"]


async def test_narrow_tables_wrap_states_and_keep_names(bare: Client, root: Path) -> None:
    """A long state used to leave only `…` of the names."""
    bare.ignore("status/update")
    (root / "CLAUDE.md").unlink()
    (root / "AGENTS.md").write_text("x" * 40_000)
    await bare.initialize(root.as_uri())
    wide, narrow = [
        (await bare.request("context/footprint", {"agent": "codex", "width": width}))["text"]
        for width in (0, 80)
    ]
    table = narrow.split("\n\n")[0].split("\n")[1:]
    assert all(len(line) <= 80 for line in table)
    at = next(index for index, line in enumerate(table) if line.startswith("  AGENTS.md "))
    assert "cut: 7,232 bytes never arrive" in table[at]
    assert table[at + 1].startswith(" " * table[at].index("cut:"))
    assert "…" not in narrow
    assert narrow.split() == wide.split()


async def test_a_folder_in_the_root_and_one_agent_can_be_asked_for(
    bare: Client, root: Path
) -> None:
    await bare.initialize(root.as_uri(), ignored=("status/update",))
    for folder in (str(root / "pkg"), (root / "pkg").as_uri()):
        report = await bare.request("context/footprint", {"folder": folder, "agent": "codex"})
        assert report["folder"] == (root / "pkg").as_uri()
        (agent,) = report["agents"]
        assert agent["agent"] == "codex"
        assert [part["label"] for part in agent["parts"][1:]] == ["../AGENTS.md"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
async def test_a_name_that_is_not_utf8_is_escaped(bare: Client, root: Path) -> None:
    rule = Path(os.fsdecode(bytes(root) + b"/.claude/rules/\xff.md"))
    await asyncio.to_thread(write, rule, "A rule.")
    await bare.initialize(root.as_uri(), ignored=("status/update",))
    report = await bare.request("context/footprint", {"agent": "claude-code"})
    (part,) = (part for part in report["agents"][0]["parts"] if part["kind"] == "rule")
    assert part["label"] == r".claude/rules/\udcff.md"
    assert part["uri"].endswith("/.claude/rules/%FF.md")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"folder": "/etc"}, "`folder` must be in a root folder"),
        ({"folder": "pkg"}, "`folder` must be in a root folder"),
        ({"folder": "untitled:1"}, "`folder` must be in a root folder"),
        ({"agent": "claude"}, "did you mean claude-code?"),
    ],
)
async def test_other_folders_and_agents_are_refused(
    bare: Client, root: Path, params: dict[str, str], message: str
) -> None:
    await bare.initialize(root.as_uri(), ignored=("status/update",))
    with pytest.raises(RpcError, match=re.escape(message)):
        await bare.request("context/footprint", params)
