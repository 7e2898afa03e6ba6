"""Tests that exceeded budgets are shown as diagnostics with quick fixes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.text.document import Position, Range, TextDocument
from sidecar.workspace.check_paths import check_paths as run
from sidecar.workspace.workspace import Event
from tests.protocol.client import Client, edit
from tests.truth import encoding, truth

BUDGET = '[[budget]]\nfiles = "*.md"\nmax-tokens = 20\nsections = { "Notes" = 12 }\n'
SUM = '[[budget]]\nfiles = ["*.md"]\nsum = true\nmax-tokens = {}\n'
LINES = [
    "日本語のテキスト、絵文字🙂\r\n",
    "plain words, and more of them\r\n",
    "👩‍👩‍👧 family é\r\n",
]
LONG = "# Top\r\n" + "".join(LINES) * 4
CHANGES = {
    "workspaceEdit": {
        "documentChanges": True,
        "resourceOperations": ["create"],
        "changeAnnotationSupport": {"groupsOnLabel": True},
    }
}


class Workspace:
    """A client and a folder with a budget."""

    def __init__(self, client: Client, folder: Path, chosen: str) -> None:
        self.client = client
        self.folder = folder
        self.encoding: Any = chosen
        self.uri = (folder / "AGENTS.md").as_uri()

    async def diagnostics(self, version: int) -> list[dict[str, Any]]:
        told = await self.client.take(
            "textDocument/publishDiagnostics", lambda p: p["version"] == version
        )
        found: list[dict[str, Any]] = told["diagnostics"]
        return found

    async def actions(self, found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        actions = await self.client.request(
            "textDocument/codeAction",
            {
                "textDocument": {"uri": self.uri},
                "range": found[0]["range"],
                "context": {"diagnostics": found},
            },
        )
        return {action["title"]: action for action in actions}

    def applied(self, text: str, action: dict[str, Any]) -> str:
        """Return the document's text after applying a code action's edits."""
        document = TextDocument(self.uri, text, 1, self.encoding)
        for change in action["edit"]["documentChanges"]:
            if change.get("textDocument", {}).get("uri") != self.uri:
                continue
            for item in reversed(change["edits"]):
                document.apply(_span(item["range"]), item["newText"])
        return document.text


def _span(span: dict[str, Any]) -> Range:
    start, end = span["start"], span["end"]
    return Range(
        Position(start["line"], start["character"]), Position(end["line"], end["character"])
    )


PUSHES: dict[str, Any] = {"textDocument": {"publishDiagnostics": {}}}
PULLS: dict[str, Any] = {"textDocument": {"diagnostic": {}}}


async def begin(client: Client, folder: Path, rules: str, capabilities: Any = PUSHES) -> str:
    """Start in a folder with budgets, ignore the status, and return the URI of its AGENTS.md."""
    (folder / ".token-sidecar.toml").write_text(rules)
    await client.initialize(
        root=folder.as_uri(),
        capabilities=capabilities,
        ignored=("status/update", "workspace/diagnostic/refresh"),
    )
    return (folder / "AGENTS.md").as_uri()


EACH_ENCODING = pytest.mark.parametrize("workspace", ["utf-8", "utf-16", "utf-32"], indirect=True)


@pytest.fixture
async def workspace(request: Any, bare: Client, tmp_path: Path) -> Workspace:
    chosen = getattr(request, "param", "utf-16")
    encodings = {"general": {"positionEncodings": [chosen]}}
    await begin(bare, tmp_path, BUDGET, PUSHES | encodings | {"workspace": CHANGES})
    return Workspace(bare, tmp_path, chosen)


@EACH_ENCODING
async def test_first_token_over_the_budget_is_reported(workspace: Workspace) -> None:
    workspace.client.open(LONG, workspace.uri)
    (found,) = await workspace.diagnostics(1)
    tokens = truth(LONG)
    assert found["message"] == (
        f"AGENTS.md is {tokens} tokens, {tokens - 20} over its budget of 20 (gpt-5, exact)"
    )
    assert (found["code"], found["source"], found["severity"]) == (
        "budget-exceeded",
        "token-sidecar",
        1,
    )
    document = TextDocument("", LONG, 1, workspace.encoding)
    span = _span(found["range"])
    start = document.offset_at(span.start)
    assert document.offset_at(span.end) == len(LONG)
    prefix = encoding().decode(encoding().encode_ordinary(LONG)[:20])
    assert LONG[:start] == prefix.rstrip("\ufffd")


async def test_diagnostic_disappears_when_the_document_fits(workspace: Workspace) -> None:
    client = workspace.client
    client.open("# Top\r\n", workspace.uri)
    client.change(edit((1, 0), (1, 0), LONG), uri=workspace.uri)
    assert len(await workspace.diagnostics(2)) == 1
    client.change({"text": "# Top\r\n"}, uri=workspace.uri)
    assert await workspace.diagnostics(3) == []


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n", "\r"])
async def test_fixes_are_offered_at_the_last_line_even_if_it_is_empty(
    workspace: Workspace, end: str
) -> None:
    text = LONG.rstrip() + end
    workspace.client.open(text, workspace.uri)
    found = await workspace.diagnostics(1)
    last = found[0]["range"]["end"]
    actions = await workspace.actions([{**found[0], "range": {"start": last, "end": last}}])
    assert "Fit to budget: keep the start" in actions


@EACH_ENCODING
async def test_fit_fixes_meet_the_budget_and_keep_the_final_newline(workspace: Workspace) -> None:
    workspace.client.open(LONG, workspace.uri)
    actions = await workspace.actions(await workspace.diagnostics(1))
    fits = [title for title in actions if title.startswith("Fit to budget")]
    assert fits[0] == "Fit to budget: keep the start"
    assert len(fits) == 6, "three modes, each with a preview"
    for title in fits:
        fitted = workspace.applied(LONG, actions[title])
        assert 0 < truth(fitted) <= 20
        assert fitted.endswith("\r\n")
        asks = "changeAnnotations" in actions[title]["edit"]
        assert asks == title.endswith("(preview)"), "only the preview asks for confirmation"


async def test_fixes_are_offered_on_the_whole_line(workspace: Workspace) -> None:
    """The diagnostic starts in the middle of a line, but editors mark the whole line."""
    workspace.client.open(LONG, workspace.uri)
    (found,) = await workspace.diagnostics(1)
    line = found["range"]["start"]["line"]
    assert found["range"]["start"]["character"] > 0
    start = {"line": line, "character": 0}
    assert await workspace.actions([found | {"range": {"start": start, "end": start}}])
    if line:
        above = {"line": line - 1, "character": 0}
        assert not await workspace.actions([found | {"range": {"start": above, "end": above}}])


async def test_fixes_are_not_offered_after_the_section(workspace: Workspace) -> None:
    """A section ends where the next heading's line starts."""
    text = "# A\r\n\r\n## Notes\r\n\r\n" + LINES[1] * 4 + "## Next\r\n"
    workspace.client.open(text, workspace.uri)
    found = next(d for d in await workspace.diagnostics(1) if d["data"]["section"])
    heading = {"line": 8, "character": 3}
    assert found["range"]["end"] == {"line": 8, "character": 0}
    offered = await workspace.actions([found | {"range": {"start": heading, "end": heading}}])
    assert not any("A > Notes" in title for title in offered)
    last = {"line": 7, "character": 0}
    offered = await workspace.actions([found | {"range": {"start": last, "end": last}}])
    assert any("A > Notes" in title for title in offered)


async def test_section_over_its_own_budget_is_reported(workspace: Workspace) -> None:
    text = "# A\r\n\r\n## Notes\r\n\r\n" + LINES[1] * 2
    workspace.client.open(text, workspace.uri)
    found = await workspace.diagnostics(1)
    section = next(d for d in found if d["data"]["section"])
    assert section["message"].startswith("A > Notes in AGENTS.md is ")
    assert section["data"]["budget"] == 12
    assert section["range"]["start"]["line"] >= 2


async def test_raising_the_budget_edits_the_project_file(workspace: Workspace) -> None:
    workspace.client.open(LONG, workspace.uri)
    actions = await workspace.actions(await workspace.diagnostics(1))
    title = next(title for title in actions if title.startswith("Raise the budget"))
    (change,) = actions[title]["edit"]["documentChanges"]
    assert change["textDocument"]["uri"].endswith("/.token-sidecar.toml")
    file = TextDocument("", BUDGET, 1, workspace.encoding)
    for item in change["edits"]:
        file.apply(_span(item["range"]), item["newText"])
    assert file.text.splitlines()[2].startswith("max-tokens = ")
    (workspace.folder / ".token-sidecar.toml").write_text(file.text)
    await workspace.client.take("textDocument/publishDiagnostics", raised)


async def test_unsaved_project_file_is_not_edited_by_a_fix(workspace: Workspace) -> None:
    """The positions in the file on disk differ from those in the editor."""
    workspace.client.open(LONG, workspace.uri)
    found = await workspace.diagnostics(1)
    file = (workspace.folder / ".token-sidecar.toml").as_uri()
    for text, is_offered in ((BUDGET, True), (f"# A note\n{BUDGET}", False)):
        workspace.client.open(text, file, "toml")
        titles = await workspace.actions(found)
        assert any(title.startswith("Raise the budget") for title in titles) is is_offered
    workspace.client.ignore("textDocument/publishDiagnostics")


def raised(published: dict[str, Any]) -> bool:
    """Return whether the diagnostics show that no budget is exceeded."""
    return all(diagnostic["code"] == "budget-near" for diagnostic in published["diagnostics"])


@pytest.mark.parametrize(("place", "offered"), [("..", False), (".", True)])
async def test_raising_the_budget_does_not_write_outside_the_root(
    workspace: Workspace, place: str, offered: bool
) -> None:
    workspace.client.open(LONG, workspace.uri)
    found = await workspace.diagnostics(1)
    linked(workspace.folder, place)
    titles = await workspace.actions(found)
    assert any(title.startswith("Raise the budget") for title in titles) == offered
    workspace.client.ignore("textDocument/publishDiagnostics")


def linked(folder: Path, place: str) -> None:
    """Replace the configuration file with a symbolic link to a file in another folder."""
    file = folder / ".token-sidecar.toml"
    file.rename(folder / place / "elsewhere.toml")
    file.symlink_to(f"{place}/elsewhere.toml")


async def test_moving_the_excess_creates_a_file(workspace: Workspace) -> None:
    text = "# Top\n" + "a line of words\n" * 12
    workspace.client.open(text, workspace.uri)
    actions = await workspace.actions(await workspace.diagnostics(1))
    title = next(title for title in actions if title.startswith("Move the excess"))
    create, insert, _ = actions[title]["edit"]["documentChanges"]
    assert (create["kind"], create["uri"]) == (
        "create",
        (workspace.folder / "AGENTS.excess.md").as_uri(),
    )
    left = workspace.applied(text, actions[title])
    assert truth(left) <= 20
    assert left + insert["edits"][0]["newText"] == text


async def test_moving_the_excess_does_not_follow_links(workspace: Workspace) -> None:
    """Tests a link without a target, and a link whose target folder is outside of the project."""
    folder = workspace.folder
    (folder / "AGENTS.excess.md").symlink_to("../planted.md")
    text = "# Top\n" + "a line of words\n" * 12
    workspace.client.open(text, workspace.uri)
    actions = await workspace.actions(await workspace.diagnostics(1))
    title = next(title for title in actions if title.startswith("Move the excess"))
    assert actions[title]["edit"]["documentChanges"][0]["uri"].endswith("/AGENTS.excess2.md")
    outside = folder.parent / "outside"
    outside.mkdir(exist_ok=True)
    (folder / "linked").symlink_to(outside)
    workspace.uri = (folder / "linked" / "AGENTS.md").as_uri()
    workspace.client.open(text, workspace.uri)
    actions = await workspace.actions(await workspace.diagnostics(1))
    assert actions
    assert not any(title.startswith("Move the excess") for title in actions)


async def test_ignore_fix_removes_the_diagnostic(workspace: Workspace) -> None:
    workspace.client.open(LONG, workspace.uri)
    actions = await workspace.actions(await workspace.diagnostics(1))
    title = next(title for title in actions if title.startswith("Ignore"))
    quiet = workspace.applied(LONG, actions[title])
    workspace.client.change({"text": quiet}, uri=workspace.uri)
    assert await workspace.diagnostics(2) == []


async def test_no_diagnostics_without_a_rule(talker: Client) -> None:
    talker.open("word " * 10_000)
    await talker.count()
    assert talker.unread == []


async def test_the_status_shows_the_budget(workspace: Workspace) -> None:
    workspace.client._ignored.discard("status/update")
    workspace.client.open(LONG, workspace.uri)
    # The first update may be sent before the settings are read.
    update = await workspace.client.take("status/update", lambda u: u["document"]["budget"])
    assert update["document"]["budget"] == 20
    assert update["severity"] == "error"
    assert update["document"]["percent"] == 100 * truth(LONG) // 20
    workspace.client.ignore("status/update", "textDocument/publishDiagnostics")


async def test_status_shows_no_budget_for_an_ignored_file(workspace: Workspace) -> None:
    workspace.client._ignored.discard("status/update")
    mark = "<!-- token-budget: ignore -->\r\n"
    workspace.client.open(mark + LONG, workspace.uri)
    update = await workspace.client.take("status/update")
    assert (update["document"]["budget"], update["severity"]) == (None, "ok")
    end = (0, len(mark) - 2)
    workspace.client.change(edit((0, 0), end, ""), uri=workspace.uri)
    update = await workspace.client.take("status/update")
    assert (update["document"]["budget"], update["severity"]) == (20, "error")
    workspace.client.ignore("status/update", "textDocument/publishDiagnostics")


async def test_diagnostics_are_not_pushed_to_a_client_that_pulls(
    bare: Client, tmp_path: Path
) -> None:
    uri = await begin(bare, tmp_path, BUDGET, PULLS)
    bare.open(LONG, uri)
    report = await bare.request("textDocument/diagnostic", {"textDocument": {"uri": uri}})
    assert [d["code"] for d in report["items"]] == ["budget-exceeded"]
    assert bare.unread == []


@pytest.mark.parametrize("name", ["AGENTS.md", "other.md", "nowhere/a.txt"])
async def test_pull_for_a_closed_document_is_empty(bare: Client, tmp_path: Path, name: str) -> None:
    uri = await begin(bare, tmp_path, BUDGET, PULLS)
    bare.open(LONG, uri)
    bare.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
    closed = {"textDocument": {"uri": (tmp_path / name).as_uri()}}
    report = await bare.request("textDocument/diagnostic", closed)
    assert (report["kind"], report["items"]) == ("full", [])


@pytest.mark.parametrize(
    "workspace_edit",
    [None, {}, {"documentChanges": False, "resourceOperations": ["create"]}],
)
async def test_client_without_document_changes_gets_plain_changes(
    bare: Client, tmp_path: Path, workspace_edit: dict[str, Any] | None
) -> None:
    edits = {} if workspace_edit is None else {"workspaceEdit": workspace_edit}
    await begin(bare, tmp_path, BUDGET, PUSHES | {"workspace": edits})
    workspace = Workspace(bare, tmp_path, "utf-16")
    bare.open(LONG, workspace.uri)
    actions = await workspace.actions(await workspace.diagnostics(1))
    assert {title.partition(" ")[0] for title in actions} >= {"Fit", "Raise", "Ignore"}
    for title, action in actions.items():
        assert list(action["edit"]) == ["changes"], title
        ((uri, changes),) = action["edit"]["changes"].items()
        name = ".token-sidecar.toml" if title.startswith("Raise") else "AGENTS.md"
        assert uri == (tmp_path / name).as_uri()
        assert all(set(change) == {"range", "newText"} for change in changes)


async def test_document_closed_during_a_pull_leaves_no_severity(
    bare: Client, tmp_path: Path
) -> None:
    uri = await begin(bare, tmp_path, BUDGET, PULLS)
    bare.open(LONG, uri)
    params = {"textDocument": {"uri": uri}}
    pulled = asyncio.ensure_future(bare.request("textDocument/diagnostic", params))
    for _ in range(3):
        await asyncio.sleep(0)
    bare.notify("textDocument/didClose", params)
    assert (await pulled)["items"]
    assert bare.server.services.severities.get(uri, "ok") == "ok"


async def test_links_count_towards_sums_as_in_check(bare: Client, tmp_path: Path) -> None:
    text = "some words in a file\n"
    (tmp_path / "AGENTS.md").write_text(text)
    (tmp_path / "notes.txt").write_text("these count by the link that leads to them\n")
    (tmp_path / "CLAUDE.md").symlink_to("AGENTS.md")
    (tmp_path / "NOTES.md").symlink_to("notes.txt")
    (tmp_path / "OUT.md").symlink_to(tmp_path.parent)
    await begin(bare, tmp_path, SUM.format(3))
    bare.ignore("textDocument/publishDiagnostics")
    report, _ = run([str(tmp_path)])
    (checked,) = (file.findings[0] for file in report.files if file.path.endswith("AGENTS.md"))
    for name in ("AGENTS.md", "CLAUDE.md"):
        uri = (tmp_path / name).as_uri()
        bare.open(text, uri)
        _, (finding,) = await bare.server.services.findings(uri)
        assert (finding.tokens, finding.files) == (checked.tokens, checked.files)
        bare.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
    assert checked.files == 2


async def test_other_file_replaced_with_the_same_size_and_times_is_counted_again(
    bare: Client, tmp_path: Path
) -> None:
    text, uri = "some words in a file\n", await begin(bare, tmp_path, SUM.format(3))
    bare.ignore("textDocument/publishDiagnostics")
    bare.open(text, uri)
    for content in ("words " * 20, "w.r.s," * 20):
        new = tmp_path / "new"
        new.write_text(content)
        os.utime(new, (0, 0))
        new.replace(tmp_path / "other.md")
        _, (finding,) = await bare.server.services.findings(uri)
        assert finding.tokens == truth(text) + truth(content)


async def test_budget_over_several_files_counts_them_together(bare: Client, tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("ten words are in this file and it counts\n")
    (tmp_path / "quiet.md").write_text("<!-- token-budget: ignore -->\n" + "word " * 100)
    uri = await begin(bare, tmp_path, SUM.format(20))
    text = "and these are some more words in the open one\n"
    bare.open(text, uri)
    told = await bare.take("textDocument/publishDiagnostics")
    both = truth(text) + truth("ten words are in this file and it counts\n")
    assert told["diagnostics"][0]["message"] == (
        f"AGENTS.md and 1 other file together are {both} tokens, "
        f"{both - 20} over their budget of 20 (gpt-5, exact): "
        f"AGENTS.md {truth(text)}, other.md {both - truth(text)}"
    )
    # The editor's text takes precedence over the file on disk.
    bare.open("short\n", (tmp_path / "other.md").as_uri())
    bare.change({"text": text + "\n"}, uri=uri)
    told = await bare.take("textDocument/publishDiagnostics", lambda p: p["uri"] == uri)
    assert told["diagnostics"] == []
    bare.ignore("textDocument/publishDiagnostics")


async def test_prompt_buffer_is_checked_against_the_window_if_enabled(
    bare: Client, tmp_path: Path
) -> None:
    await begin(bare, tmp_path, "[diagnostics]\nprompt-buffers = true\n")
    bare.ignore("context/warning")
    uri = (tmp_path / "prompt.md").as_uri()
    bare.open("word " * 100, uri)
    section = {"name": "prompt", "textDocument": {"uri": uri}}
    await bare.request("context/set", {"sections": [section], "limit": 120, "reserve": 0})
    bare.change(edit((0, 0), (0, 0), "word " * 50), uri=uri)
    told = await bare.take("textDocument/publishDiagnostics", lambda p: p["diagnostics"])
    assert told["diagnostics"][0]["code"] == "budget-exceeded"
    assert told["diagnostics"][0]["data"]["rule"] == "window"
    bare.ignore("textDocument/publishDiagnostics")


async def test_closed_file_is_counted_from_disk(bare: Client, tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("short\n")
    await begin(bare, tmp_path, SUM.format(20))
    first, second = (tmp_path / "a.md").as_uri(), (tmp_path / "b.md").as_uri()
    bare.open("a few words\n", first)
    bare.open("word " * 40, second)
    told = await bare.take("textDocument/publishDiagnostics", lambda p: p["uri"] == first)
    assert told["diagnostics"]
    told = await bare.take("textDocument/publishDiagnostics", lambda p: p["uri"] == second)
    assert told["diagnostics"]
    bare.notify("textDocument/didClose", {"textDocument": {"uri": second}})
    told = await bare.take("textDocument/publishDiagnostics", lambda p: p["uri"] == first)
    assert told["diagnostics"] == []
    bare.ignore("textDocument/publishDiagnostics")


async def test_budgets_model_is_used_on_every_surface(bare: Client, tmp_path: Path) -> None:
    (tmp_path / ".token-sidecar.toml").write_text(
        '[[budget]]\nfiles = ["*.md"]\nmodel = "claude-opus-4-7"\nmax-tokens = 100\n'
    )
    await bare.initialize(
        root=tmp_path.as_uri(),
        capabilities={
            "textDocument": {
                "publishDiagnostics": {},
                "hover": {"contentFormat": ["markdown"]},
            }
        },
    )
    uri = (tmp_path / "a.md").as_uri()
    bare.open("# " + "word " * 90, uri)
    told = await bare.take("textDocument/publishDiagnostics")
    data = told["diagnostics"][0]["data"]
    assert (data["model"], data["budget"]) == ("claude-opus-4-7", 100)
    shown = await bare.take(
        "status/update",
        lambda u: u["severity"] == "warning" and "Window" in u["document"]["tooltip"],
    )
    document = shown["document"]
    assert (document["budget"], document["tokens"]) == (100, data["tokens"])
    assert document["percent"] > 100
    assert "| Budget | 100 tokens, " in document["tooltip"]
    assert "| Model | claude-opus-4-7 (" in document["tooltip"]
    position = {"line": 0, "character": 0}
    hover = await bare.request(
        "textDocument/hover", {"textDocument": {"uri": uri}, "position": position}
    )
    assert document["tooltip"] in hover["contents"]["value"]
    command = {"command": "tokenSidecar.server.compareModels", "arguments": [uri, "gpt-4o"]}
    compared = await bare.request("workspace/executeCommand", command)
    for comparison in (hover["contents"]["value"], compared):
        assert "\n| claude-opus-4-7 | " in comparison
    named = {"uri": uri}
    whole = {"start": position, "end": {"line": 1, "character": 0}}
    result = await bare.request("tokens/count", {"textDocument": named, "ranges": [whole]})
    for count in (result, *result["ranges"]):
        assert (count["model"], count["tokens"]) == ("claude-opus-4-7", document["tokens"])
    assert (await bare.request("tokens/count", {"textDocument": named}))["model"] == count["model"]
    fitted = await bare.request("tokens/fit", {"textDocument": named, "maxTokens": 50})
    assert fitted["model"] == "claude-opus-4-7"
    part = {"textDocument": named, "text": "a part of it"}
    for counted in (
        await bare.request("tokens/count", part),
        await bare.request("tokens/fit", part | {"maxTokens": 50}),
    ):
        assert counted["model"] == "claude-opus-4-7"
        assert 0 < counted["tokens"] < document["tokens"], "the part is counted"
    bare.ignore("status/update", "window/showMessage")


async def test_lowest_of_several_budgets_is_shown(bare: Client, tmp_path: Path) -> None:
    (tmp_path / ".token-sidecar.toml").write_text(
        '[[budget]]\nfiles = ["*.md"]\nmax-tokens = 500\n'
        '[[budget]]\nfiles = ["a.md"]\nmodel = "claude-opus-4-7"\nmax-tokens = 400\n'
    )
    await bare.initialize(root=tmp_path.as_uri(), ignored=("textDocument/publishDiagnostics",))

    async def shown(name: str) -> dict[str, Any]:
        uri = (tmp_path / name).as_uri()
        bare.open("word " * 90, uri)
        update = await bare.take("status/update", lambda u: u["uri"] == uri)
        document: dict[str, Any] = update["document"]
        return document

    for name, budget, model in (("a.md", 400, "claude-opus-4-7"), ("b.md", 500, "gpt-5")):
        document = await shown(name)
        assert document["budget"] == budget
        assert f"| Model | {model} (" in document["tooltip"]
    bare.ignore("status/update")


async def test_unchanged_diagnostics_are_published_once(workspace: Workspace) -> None:
    client = workspace.client
    client.ignore("status/update")
    client.open(" word" * 30, uri=workspace.uri)
    first = await client.take("textDocument/publishDiagnostics")
    assert first["diagnostics"]
    client.server.services.publish(Event("settings"))
    key = ("diagnostics", workspace.uri)
    assert client.server.scheduler.is_due(key)
    while client.server.scheduler.is_due(key):
        await asyncio.sleep(0.01)
    assert not [
        message
        for message in client.unread
        if message["method"] == "textDocument/publishDiagnostics"
    ]


async def test_what_an_agent_always_loads_has_a_budget(bare: Client, tmp_path: Path) -> None:
    """Comments are not sent, and open documents count as they are in the editor."""
    sent, other = tmp_path / "CLAUDE.md", tmp_path / ".claude/rules/a.md"
    other.parent.mkdir(parents=True)
    for path in (sent, other, tmp_path / "notes.md"):
        path.write_text("Use short sentences.\n")
    budget = '[[budget]]\nalways-loaded = "claude-code"\nmax-tokens = 7\n'
    await begin(bare, tmp_path, budget, {"workspace": CHANGES})

    async def messages(path: Path, count: int) -> list[str]:
        told = await bare.take(
            "textDocument/publishDiagnostics",
            lambda p: p["uri"] == path.as_uri() and len(p["diagnostics"]) == count,
        )
        return [one["message"] for one in told["diagnostics"]]

    bare.open("<!-- A comment. -->\nUse short sentences.\n", sent.as_uri())
    checked, _ = run([str(sent)])
    (report,) = [one for one in checked.files if one.findings]
    assert await messages(sent, 1) == [report.findings[0].message]
    assert report.findings[0].message.startswith("Every Claude Code call: CLAUDE.md and 1 other ")
    ends = {"line": 0, "character": 0}
    actions = await bare.request(
        "textDocument/codeAction",
        {
            "textDocument": {"uri": sent.as_uri()},
            "range": {"start": ends, "end": ends},
            "context": {"diagnostics": []},
        },
    )
    titles = [action["title"] for action in actions]
    assert any(title.startswith("Raise the budget to 10 in ") for title in titles)
    assert not any(title.startswith("Ignore") for title in titles)
    bare.open("Use short sentences.\n", (tmp_path / "notes.md").as_uri())
    bare.open("", other.as_uri())
    assert await messages(sent, 0) == []
    bare.change({"text": "Use short sentences.\n"}, uri=other.as_uri())
    assert await messages(other, 1)
    bare.ignore("textDocument/publishDiagnostics")
