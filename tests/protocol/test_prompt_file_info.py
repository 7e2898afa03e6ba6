"""Tests what hovers and code lenses say about prompt files: who sends them, and what is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.file_opens import recorded_opens
from tests.protocol.client import Client

LENSES = {"tokenSidecar": {"codeLens": True}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project for Claude Code and Codex, which are used on this machine."""
    root = tmp_path / "home" / "app"
    (root / ".git").mkdir(parents=True)
    for folder in (".claude", ".codex"):
        (tmp_path / "home" / folder).mkdir()
    return root


async def hover(client: Client, uri: str) -> list[str]:
    """Return the lines of the hover on the first line of a document."""
    at = {"textDocument": {"uri": uri}, "position": {"line": 0, "character": 0}}
    return str((await client.request("textDocument/hover", at))["contents"]["value"]).splitlines()


async def lenses(client: Client, uri: str) -> list[str]:
    """Return the titles of the code lenses on the first line of a document."""
    found = await client.request("textDocument/codeLens", {"textDocument": {"uri": uri}})
    return [each["command"]["title"] for each in found if each["range"]["start"]["line"] == 0]


async def start(client: Client, root: Path) -> None:
    client.ignore("status/update", "textDocument/publishDiagnostics")
    await client.initialize(root.as_uri(), initializationOptions=LENSES)


def opened_in(client: Client, path: Path, text: str) -> str:
    """Open a document, and return its URI."""
    client.open(text, path.as_uri())
    return path.as_uri()


async def test_a_hidden_file_says_who_does_not_see_it_and_why(bare: Client, root: Path) -> None:
    (root / "CLAUDE.md").write_text("Be brief.\n")
    (root / "AGENTS.md").write_text("Be polite.\n")
    await start(bare, root)
    uri = opened_in(bare, root / "AGENTS.md", "Be polite.\n")
    told = ["Sent by Codex", "Hidden from Claude Code by CLAUDE.md"]
    assert (await lenses(bare, uri))[1:] == told
    lines = await hover(bare, uri)
    assert [line.removeprefix("- ") for line in lines][-2:] == told
    assert lines[-3].startswith("- Sent with every request: ")


async def test_a_cut_file_says_which_unsaved_lines_are_lost(bare: Client, root: Path) -> None:
    (root / "AGENTS.md").write_text("short\n")
    await start(bare, root)
    line = "x" * 1023 + "\n"
    uri = opened_in(bare, root / "AGENTS.md", line * 40)
    (cut,) = [one for one in await lenses(bare, uri) if one.startswith("Cut by Codex")]
    assert f"{8 * 1024:,} bytes never arrive" in cut
    assert cut.endswith("(lines 33 to 40)")
    assert any("lines 33 to 40" in one for one in await hover(bare, uri))


async def test_a_file_in_a_subfolder_says_that_it_is_sent_later(bare: Client, root: Path) -> None:
    (root / "pkg").mkdir()
    (root / "pkg" / "CLAUDE.md").write_text("Be brief.\n")
    await start(bare, root)
    uri = opened_in(bare, root / "pkg" / "CLAUDE.md", "Be brief.\n")
    (told,) = await lenses(bare, uri)
    assert told.startswith("Sent later by Claude Code: ")


async def test_lenses_read_no_file_again_and_nothing_for_other_documents(
    bare: Client, root: Path
) -> None:
    for name in ("CLAUDE.md", "CLAUDE.local.md", "notes.md"):
        (root / name).write_text("Be brief.\n")
    await start(bare, root)
    prompt = opened_in(bare, root / "CLAUDE.md", "Be brief.\n")
    notes = opened_in(bare, root / "notes.md", "Be brief.\n")
    await lenses(bare, prompt)  # finds the footprints
    with recorded_opens(root) as opened:
        assert await lenses(bare, prompt)
    assert str(root / "CLAUDE.local.md") not in opened
    with recorded_opens(root) as opened:
        await lenses(bare, notes)
    assert opened == []
