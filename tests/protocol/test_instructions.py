"""Tests that editors show who sends an open prompt file, and what coding agents lose of it."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sidecar.project import footprint
from sidecar.project.loading_rules import loading_rules
from sidecar.text.document import Position, TextDocument
from tests.file_opens import recorded_opens
from tests.protocol.client import Client, edit, until

CHANGES = {"documentChanges": True, "resourceOperations": ["create", "delete"]}
CODEX_BYTES = 32_768


class Editor:
    """A client with a folder, on a machine with Claude Code and Codex."""

    def __init__(self, client: Client, root: Path, home: Path, encoding: Any) -> None:
        self.client, self.root, self.home, self.encoding = client, root, home, encoding

    def uri(self, name: str) -> str:
        return (self.root / name).as_uri()

    def write(self, name: str, text: str | bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def open(self, name: str) -> None:
        """Open a file as an editor does: without its byte order mark."""
        text = (self.root / name).read_bytes().decode("utf-8-sig", "replace")
        self.client.open(text, self.uri(name))

    async def findings(self, name: str, *codes: str) -> list[dict[str, Any]]:
        """Wait until a document's diagnostics have these codes, and return them."""
        uri, wanted = self.uri(name), sorted(codes)
        told = await self.client.take(
            "textDocument/publishDiagnostics",
            lambda params: params["uri"] == uri and _codes(params) == wanted,
        )
        found: list[dict[str, Any]] = told["diagnostics"]
        return found

    async def actions(self, name: str, found: dict[str, Any]) -> list[dict[str, Any]]:
        actions: list[dict[str, Any]] = await self.client.request(
            "textDocument/codeAction",
            {
                "textDocument": {"uri": self.uri(name)},
                "range": found["range"],
                "context": {"diagnostics": [found]},
            },
        )
        return actions

    def span(self, text: str, found: dict[str, Any]) -> str:
        """Return the text that a diagnostic underlines."""
        document = TextDocument("", text, 1, self.encoding)
        start, end = (
            document.offset_at(
                Position(found["range"][side]["line"], found["range"][side]["character"])
            )
            for side in ("start", "end")
        )
        return document.text[start:end]


def _codes(params: dict[str, Any]) -> list[str]:
    return sorted(row["code"] for row in params["diagnostics"])


@pytest.fixture
async def editor(request: Any, bare: Client, tmp_path: Path) -> Editor:
    root, home = tmp_path / "project", tmp_path / "home"
    (root / ".git").mkdir(parents=True)
    (home / ".claude").mkdir()
    (home / ".codex").mkdir()
    chosen = getattr(request, "param", "utf-16")
    await bare.initialize(
        root=root.as_uri(),
        capabilities={
            "general": {"positionEncodings": [chosen]},
            "textDocument": {"publishDiagnostics": {}},
            "workspace": {"workspaceEdit": CHANGES},
        },
    )
    bare.ignore("status/update")
    return Editor(bare, root, home, chosen)


EACH_ENCODING = pytest.mark.parametrize("editor", ["utf-8", "utf-16", "utf-32"], indirect=True)


@EACH_ENCODING
@pytest.mark.parametrize("head", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
async def test_a_cut_is_underlined_from_the_first_lost_byte(editor: Editor, head: bytes) -> None:
    text = "é🙂 family\r\n" * 3_000
    editor.write("AGENTS.md", head + text.encode())
    editor.open("AGENTS.md")
    (found,) = await editor.findings("AGENTS.md", "instructions-cut")
    kept = (head + text.encode())[:CODEX_BYTES].decode("utf-8-sig", "ignore")
    assert editor.span(text, found) == text[len(kept) :]
    assert (found["severity"], found["source"]) == (2, "token-sidecar")
    assert found["data"] == {"agents": ["codex"]}
    assert found["codeDescription"]["href"].endswith("instruction-findings.md#instructions-cut")
    assert found["message"].startswith("Codex ")


@EACH_ENCODING
async def test_a_fix_puts_white_space_around_an_import(editor: Editor) -> None:
    text = "🙂 é (@docs/a.md), and more\r\n"
    editor.write("docs/a.md", "Be brief.\n")
    editor.write("CLAUDE.md", text)
    editor.open("CLAUDE.md")
    (found,) = await editor.findings("CLAUDE.md", "import-skipped")
    (action,) = await editor.actions("CLAUDE.md", found)
    assert action["title"] == "Insert white space around @docs/a.md"
    assert action["isPreferred"]
    (change,) = action["edit"]["documentChanges"]
    document = TextDocument("", text, 1, editor.encoding)
    for item in reversed(change["edits"]):
        at = item["range"]["start"]
        assert item["range"]["end"] == at
        place = document.offset_at(Position(at["line"], at["character"]))
        document = TextDocument(
            "", document.text[:place] + item["newText"] + document.text[place:], 1, editor.encoding
        )
    assert document.text == "🙂 é ( @docs/a.md ), and more\r\n"
    editor.client.change({"text": document.text}, uri=editor.uri("CLAUDE.md"))
    await editor.findings("CLAUDE.md")


async def test_the_text_of_an_open_document_counts(editor: Editor) -> None:
    editor.write("CLAUDE.md", "@docs/a.md\n")
    editor.write("docs/a.md", "Be brief.\n")
    editor.open("CLAUDE.md")
    editor.client.change(edit((0, 10), (0, 10), ","), uri=editor.uri("CLAUDE.md"))
    await editor.findings("CLAUDE.md", "import-skipped")
    editor.client.change(edit((0, 10), (0, 11), ""), uri=editor.uri("CLAUDE.md"))
    await editor.findings("CLAUDE.md")


async def test_positions_follow_edits(editor: Editor) -> None:
    editor.write("CLAUDE.md", "@docs/gone.md\n")
    editor.open("CLAUDE.md")
    await editor.findings("CLAUDE.md", "import-skipped")
    editor.client.change(edit((0, 0), (0, 0), "one\ntwo\n"), uri=editor.uri("CLAUDE.md"))
    (found,) = await editor.findings("CLAUDE.md", "import-skipped")
    assert found["range"]["start"] == {"line": 2, "character": 0}


async def test_an_open_document_counts_for_others(editor: Editor) -> None:
    """While `CLAUDE.md` is empty in the editor, Claude Code would read `AGENTS.md`."""
    editor.write("AGENTS.md", "Rules.\n")
    editor.write("CLAUDE.md", "Rules of Claude.\n")
    editor.open("AGENTS.md")
    (found,) = await editor.findings("AGENTS.md", "instructions-hidden")
    assert editor.span("Rules.\n", found) == "Rules."
    editor.open("CLAUDE.md")
    editor.client.change({"text": ""}, uri=editor.uri("CLAUDE.md"))
    await editor.findings("AGENTS.md")
    editor.client.notify(
        "textDocument/didClose", {"textDocument": {"uri": editor.uri("CLAUDE.md")}}
    )
    await editor.findings("AGENTS.md", "instructions-hidden")


async def test_files_that_appear_change_or_disappear_are_noticed(editor: Editor) -> None:
    editor.write("AGENTS.md", "Rules.\n")
    editor.open("AGENTS.md")
    editor.write("CLAUDE.md", "Rules of Claude.\n")
    await editor.findings("AGENTS.md", "instructions-hidden")
    editor.write("CLAUDE.md", "@AGENTS.md\n")
    await editor.findings("AGENTS.md")
    editor.write("CLAUDE.md", "Rules of Claude.\n")
    await editor.findings("AGENTS.md", "instructions-hidden")
    (editor.root / "CLAUDE.md").unlink()
    await editor.findings("AGENTS.md")


async def test_a_new_rule_is_noticed(editor: Editor) -> None:
    editor.write(".claude/rules/a.md", "Be brief.\n")
    editor.open(".claude/rules/a.md")
    editor.write(".claude/rules/b.md", "---\npaths: src/**\n---\nBe kind.\n")
    (found,) = await editor.findings(".claude/rules/a.md", "rule-always-loaded")
    assert found["severity"] == 3


async def test_an_edit_of_a_rule_changes_its_findings(editor: Editor) -> None:
    editor.write(".claude/rules/inner/a.md", "@gone.md\n")
    editor.open(".claude/rules/inner/a.md")
    await editor.findings(".claude/rules/inner/a.md", "import-skipped")
    editor.client.change({"text": "Be brief.\n"}, uri=editor.uri(".claude/rules/inner/a.md"))
    await editor.findings(".claude/rules/inner/a.md")


async def test_a_hidden_file_in_a_subfolder_has_a_finding_once_it_is_open(editor: Editor) -> None:
    editor.write("CLAUDE.md", "@docs/gone.md\n")
    editor.write("pkg/AGENTS.md", "Rules.\n")
    editor.open("CLAUDE.md")
    await editor.findings("CLAUDE.md", "import-skipped")
    editor.open("pkg/AGENTS.md")
    await editor.findings("pkg/AGENTS.md", "instructions-hidden")


async def test_an_empty_override_can_be_deleted(editor: Editor) -> None:
    editor.write("AGENTS.md", "Rules.\n")
    editor.write("AGENTS.override.md", "")
    editor.open("AGENTS.md")
    (found,) = await editor.findings("AGENTS.md", "instructions-hidden")
    (action,) = await editor.actions("AGENTS.md", found)
    assert action["title"] == "Delete the empty AGENTS.override.md"
    assert action["edit"]["documentChanges"] == [
        {"kind": "delete", "uri": editor.uri("AGENTS.override.md")}
    ]
    (editor.root / "AGENTS.override.md").unlink()
    await editor.findings("AGENTS.md")


async def test_own_files_outside_the_root_have_findings(editor: Editor) -> None:
    own = editor.home / ".claude" / "CLAUDE.md"
    own.write_text("@gone.md\n")
    editor.client.open("@gone.md\n", own.as_uri())
    told = await editor.client.take(
        "textDocument/publishDiagnostics", lambda params: params["uri"] == own.as_uri()
    )
    assert _codes(told) == ["import-skipped"]


async def test_settings_apply_at_once(editor: Editor) -> None:
    editor.write("CLAUDE.md", "@docs/gone.md\n")
    editor.open("CLAUDE.md")
    await editor.findings("CLAUDE.md", "import-skipped")
    for section, codes in (
        ({"footprint": {"diagnostics": False}}, []),
        ({"footprint": {"severity": {"import-skipped": "error"}}}, ["import-skipped"]),
        ({"footprint": {"agents": ["codex"]}}, []),
        ({}, ["import-skipped"]),
    ):
        editor.client.notify(
            "workspace/didChangeConfiguration", {"settings": {"tokenSidecar": section}}
        )
        await editor.findings("CLAUDE.md", *codes)


async def test_only_agents_that_are_used_here_are_checked(editor: Editor) -> None:
    (editor.home / ".codex").rmdir()
    editor.write("AGENTS.md", "a" * (CODEX_BYTES + 1))
    editor.write("CLAUDE.md", "@docs/gone.md\n")
    editor.open("AGENTS.md")
    (found,) = await editor.findings("AGENTS.md", "instructions-hidden")
    assert found["data"] == {"agents": ["claude-code"]}


async def test_budgets_and_instructions_are_shown_together(editor: Editor) -> None:
    editor.write(".token-sidecar.toml", '[[budget]]\nfiles = "CLAUDE.md"\nmax-tokens = 1\n')
    await until(lambda: editor.client.server.services.roots.default.rules.all)
    editor.write("CLAUDE.md", "@docs/gone.md\n")
    editor.open("CLAUDE.md")
    await editor.findings("CLAUDE.md", "budget-exceeded", "import-skipped")
    editor.client.unread.clear()  # budgets may be shown before instructions have been checked


async def test_budgets_are_shown_even_if_instructions_cannot_be_checked(
    editor: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr("sidecar.workspace.instruction_checks.find_in_root", fail)
    editor.write(".token-sidecar.toml", '[[budget]]\nfiles = "CLAUDE.md"\nmax-tokens = 1\n')
    await until(lambda: editor.client.server.services.roots.default.rules.all)
    editor.write("CLAUDE.md", "@docs/gone.md\n")
    editor.open("CLAUDE.md")
    await editor.findings("CLAUDE.md", "budget-exceeded")


async def test_a_client_that_pulls_gets_the_findings(bare: Client, tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / ".git").mkdir(parents=True)
    (tmp_path / "home" / ".claude").mkdir()
    (root / "CLAUDE.md").write_text("@docs/gone.md\n")
    refreshed = list[object]()
    bare.answer("workspace/diagnostic/refresh", refreshed.append)
    await bare.initialize(
        root=root.as_uri(),
        capabilities={"textDocument": {"diagnostic": {}}},
        ignored=("status/update",),
    )
    uri = (root / "CLAUDE.md").as_uri()
    bare.open("@docs/gone.md\n", uri)
    report = await bare.request("textDocument/diagnostic", {"textDocument": {"uri": uri}})
    assert [row["code"] for row in report["items"]] == ["import-skipped"]
    (root / "docs").mkdir()
    (root / "docs" / "gone.md").write_text("Be brief.\n")
    async with asyncio.timeout(60):
        while report["items"]:
            seen = len(refreshed)
            await until(lambda: len(refreshed) > seen)  # noqa: B023
            report = await bare.request("textDocument/diagnostic", {"textDocument": {"uri": uri}})


async def test_an_edit_elsewhere_checks_nothing_again(bare: Client, tmp_path: Path) -> None:
    bare.server.watcher.start_seconds = 3600
    root = tmp_path / "project"
    (root / ".git").mkdir(parents=True)
    (tmp_path / "home" / ".claude").mkdir()
    await bare.initialize(
        root=root.as_uri(), ignored=("status/update", "textDocument/publishDiagnostics")
    )
    services = bare.server.services
    workspace, instructions = services.roots.default, services.instructions
    prompt, notes = (root / "CLAUDE.md").as_uri(), (root / "notes.md").as_uri()
    bare.open("@docs/gone.md\n", prompt)
    bare.open("Notes.\n", notes)
    await until(lambda: not instructions.is_stale(workspace))
    bare.change({"text": "Other notes.\n"}, uri=notes)
    await bare.count(notes)
    assert not instructions.is_stale(workspace)
    bare.change({"text": "Be brief.\n"}, uri=prompt)
    await until(lambda: instructions.is_stale(workspace))
    await until(lambda: not instructions.is_stale(workspace))


async def hover(editor: Editor, uri: str) -> str:
    at = {"textDocument": {"uri": uri}, "position": {"line": 0, "character": 0}}
    text: str = (await editor.client.request("textDocument/hover", at))["contents"]["value"]
    return text


async def test_hovers_lenses_and_costs_find_no_footprint_again(
    bare: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Counter[str]()
    find = footprint.find_footprint

    def find_and_count(agent: str, *arguments: Any, **named: Any) -> Any:
        found[agent] += 1
        return find(agent, *arguments, **named)

    monkeypatch.setattr(footprint, "find_footprint", find_and_count)
    bare.server.watcher.start_seconds = 3600
    root = tmp_path / "project"
    (root / ".git").mkdir(parents=True)
    (tmp_path / "home" / ".claude").mkdir()
    (root / "CLAUDE.md").write_text("@docs/gone.md\n")
    await bare.initialize(root.as_uri(), initializationOptions={"codeLens": True})
    editor = Editor(bare, root, tmp_path / "home", "utf-16")
    bare.ignore("status/update", "textDocument/publishDiagnostics")
    editor.open("CLAUDE.md")
    services, uri = bare.server.services, editor.uri("CLAUDE.md")
    await until(lambda: bool(found) and not services.instructions.is_stale(services.roots.default))
    once = Counter(found)
    assert set(once) == set(loading_rules())
    for _ in range(3):
        shown = await hover(editor, uri)
        lenses = await bare.request("textDocument/codeLens", {"textDocument": {"uri": uri}})
        (row,) = await bare.request("cost/files", {})
        assert f"Sent with every request: {row['text']}" in shown.replace("\\", "")
        assert row["text"] in [lens["command"]["title"] for lens in lenses]
    assert found == once
    bare.change({"text": "Be brief.\n"}, uri=uri)
    await hover(editor, uri)
    await hover(editor, uri)
    assert found == once + Counter(loading_rules().keys())


async def test_every_file_that_is_sent_has_a_hover(editor: Editor) -> None:
    own = editor.home / ".claude" / "CLAUDE.md"
    own.write_text("Be kind.\n")
    skill = ".claude/skills/s/SKILL.md"
    editor.write(skill, "---\nname: s\ndescription: Do this.\n---\nBody.\n")
    editor.write("CLAUDE.md", "@docs/style.md\n")
    editor.write("docs/style.md", "Be brief.\n")
    editor.write("README.md", "Read me.\n")
    for name in (skill, "CLAUDE.md", "docs/style.md", "README.md"):
        editor.open(name)
    editor.client.open("Be kind.\n", own.as_uri())
    assert "Sent by Claude Code" in await hover(editor, own.as_uri())
    assert "Sent by Claude Code" in await hover(editor, editor.uri("docs/style.md"))
    assert "Listed with its description by Claude Code" in await hover(editor, editor.uri(skill))
    assert "Claude" not in await hover(editor, editor.uri("README.md"))


async def test_hovers_follow_files_without_diagnostics(editor: Editor) -> None:
    section = {"tokenSidecar": {"footprint": {"diagnostics": False}}}
    editor.client.notify("workspace/didChangeConfiguration", {"settings": section})
    editor.client.ignore("textDocument/publishDiagnostics")
    editor.write("CLAUDE.md", "Rules.\n")
    editor.write("AGENTS.md", "Rules for all.\n")
    editor.open("AGENTS.md")
    assert "Hidden from Claude Code" in await hover(editor, editor.uri("AGENTS.md"))
    (editor.root / "CLAUDE.md").unlink()
    async with asyncio.timeout(60):
        while "Hidden from Claude Code" in await hover(editor, editor.uri("AGENTS.md")):
            await asyncio.sleep(0.05)


async def test_a_document_that_is_open_through_a_link_has_the_findings(editor: Editor) -> None:
    editor.write("AGENTS.md", "@docs/gone.md\n")
    (editor.root / "CLAUDE.md").symlink_to("AGENTS.md")
    editor.client.open("@docs/gone.md and\n@docs/none.md\n", editor.uri("CLAUDE.md"))
    await editor.findings("CLAUDE.md", "import-skipped", "import-skipped")


async def test_a_link_out_of_the_root_is_not_watched_or_read(
    editor: Editor, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner" / "a.md").write_text("@gone.md\n")
    (editor.root / ".claude").mkdir()
    (editor.root / ".claude" / "rules").symlink_to(outside)
    editor.write("CLAUDE.md", "@docs/gone.md\n")
    editor.open("CLAUDE.md")
    await editor.findings("CLAUDE.md", "import-skipped")
    services = editor.client.server.services
    watched = services.instructions.watched(services.roots.default)
    assert str(editor.root / "CLAUDE.md") in watched
    real = await services.workers.run(lambda: set(map(os.path.realpath, watched)))
    assert [path for path in real if path.startswith(str(outside))] == []


LENSES = {"tokenSidecar": {"codeLens": True}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project for Claude Code and Codex, which are used on this machine."""
    root = tmp_path / "home" / "app"
    (root / ".git").mkdir(parents=True)
    for folder in (".claude", ".codex"):
        (tmp_path / "home" / folder).mkdir()
    return root


async def hover_lines(client: Client, uri: str) -> list[str]:
    """Return the lines of the hover on the first line of a document."""
    at = {"textDocument": {"uri": uri}, "position": {"line": 0, "character": 0}}
    return str((await client.request("textDocument/hover", at))["contents"]["value"]).splitlines()


async def lenses(client: Client, uri: str) -> list[str]:
    """Return the titles of the code lenses on the first line of a document."""
    found = await client.request("textDocument/codeLens", {"textDocument": {"uri": uri}})
    return [each["command"]["title"] for each in found if each["range"]["start"]["line"] == 0]


async def start(client: Client, root: Path) -> None:
    await client.initialize(
        root.as_uri(),
        initializationOptions=LENSES,
        ignored=("status/update", "textDocument/publishDiagnostics"),
    )


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
    lines = await hover_lines(bare, uri)
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
    assert any("lines 33 to 40" in one for one in await hover_lines(bare, uri))


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

    async def opened_for(uri: str) -> list[str]:
        with recorded_opens(root) as opened:
            assert bool(await lenses(bare, uri)) == (uri == prompt)
        return opened

    # The first request finds the footprints. A change that is noticed late causes one more check.
    for_prompt = [await opened_for(prompt) for _ in range(4)]
    assert any(str(root / "CLAUDE.local.md") not in opened for opened in for_prompt)
    assert [] in [await opened_for(notes) for _ in range(3)]
