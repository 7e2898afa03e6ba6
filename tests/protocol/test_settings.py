"""Tests that each setting has its documented effect on the client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.protocol.client import Client

TURNS = [
    {"role": role, "content": f"{number} some words of a long conversation " * 5}
    for number in range(6)
    for role in ("user", "assistant")
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


async def begun(client: Client, root: Path, configuration: str) -> str:
    """Start a server for `root` with this configuration. Return the URI of an open document."""
    (root / ".token-sidecar.toml").write_text(configuration)
    await client.initialize(root.as_uri())
    uri = (root / "a.md").as_uri()
    client.open("hello world\n", uri)
    return uri


@pytest.mark.parametrize(
    ("show", "text"), [("tokens", "3 tokens"), ("percent", "30 %"), ("both", "3 tokens (30 %)")]
)
async def test_status_shows_the_configured_parts(
    bare: Client, root: Path, show: str, text: str
) -> None:
    budget = '[[budget]]\nfiles = "a.md"\nmax-tokens = 10\n'
    await begun(bare, root, f'[status]\nshow = "{show}"\n{budget}')
    status = await bare.take("status/update", lambda it: it["document"])
    assert status["text"] == text
    bare.ignore("status/update")


async def test_hidden_status_keeps_its_numbers(bare: Client, root: Path) -> None:
    await begun(bare, root, "[status]\nhide = true\n")
    status = await bare.take("status/update", lambda it: it["document"])
    assert (status["text"], status["document"]["tokens"]) == ("", 3)
    bare.ignore("status/update")


@pytest.mark.parametrize(("warn_at", "warned"), [("[0.1]", True), ("[0.9]", False)])
async def test_context_warns_at_the_configured_threshold(
    bare: Client, root: Path, warn_at: str, warned: bool
) -> None:
    await begun(bare, root, f"[context]\nwarn-at = {warn_at}\n")
    bare.ignore("status/update", "context/warning")
    await bare.request("context/set", {"limit": 2_000})
    usage = await bare.request("context/append", {"turns": TURNS})
    assert 0.1 < usage["tokens"] / usage["usable"] < 0.9
    assert usage["shouldPrune"] is warned


@pytest.mark.parametrize("strategy", ["drop", "summarize"])
@pytest.mark.parametrize("asked", [{"keepTurns": 0}, {}])
async def test_keep_turns_zero_never_empties_a_conversation(
    bare: Client, root: Path, strategy: str, asked: dict[str, Any]
) -> None:
    """Either `keepTurns` in the request or `keep-turns` in the settings is 0."""
    await begun(bare, root, "[context]\nkeep-turns = 0\n" if not asked else "")
    bare.ignore("status/update", "context/warning")
    before = await bare.request("context/append", {"turns": TURNS})
    params = {"maxTokens": 1, "strategy": strategy, **asked}
    plan = await bare.request("context/fit", params)
    assert [turn["content"] for turn in plan["messages"]][-2:] == [t["content"] for t in TURNS[-2:]]
    assert not plan["fits"]
    assert len(plan["removed"]) == len(TURNS) - 2
    applied = await bare.request("context/fit", {"planId": plan["planId"], "apply": True})
    usage = await bare.request("context/usage", {})
    assert 0 < usage["tokens"] == applied["tokensAfter"] < before["tokens"]


@pytest.mark.parametrize("kept", ["start", "middle", "end"])
async def test_preferred_fix_of_a_rule_comes_first(bare: Client, root: Path, kept: str) -> None:
    rule = f'[[budget]]\nfiles = "a.md"\nmax-tokens = 1\ntruncation = "{kept}"\n'
    uri = await begun(bare, root, rule)
    bare.ignore("status/update", "textDocument/publishDiagnostics")
    ends = {"line": 0, "character": 0}, {"line": 1, "character": 0}
    params = {
        "textDocument": {"uri": uri},
        "range": dict(zip(("start", "end"), ends, strict=True)),
        "context": {"diagnostics": []},
    }
    actions = await bare.request("textDocument/codeAction", params)
    (wanted,) = [action for action in actions if action.get("isPreferred")]
    assert wanted["title"].startswith("Fit to budget")
    assert {"start": "start", "end": "end", "middle": "both ends"}[kept] in wanted["title"]
