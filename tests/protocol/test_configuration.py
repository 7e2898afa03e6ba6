"""Tests that settings apply without a restart, and that each has its documented effect."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from sidecar.agents.folders import Roots
from sidecar.budgets.budget_rules import Rules
from sidecar.config.settings import Loaded
from sidecar.server.features import configuration
from tests.protocol.client import Client


async def model_of(client: Client) -> str:
    count: dict[str, str] = await client.request("tokens/count", {"text": "hello"})
    return count["model"]


async def test_a_changed_file_takes_effect_without_restart(bare: Client, tmp_path: Path) -> None:
    await bare.initialize(root=tmp_path.as_uri())
    bare.open("hello world", uri=(tmp_path / "a.md").as_uri())
    update = await bare.take("status/update")
    assert "gpt-5" in update["document"]["tooltip"]
    await asyncio.sleep(1.0)  # The file watcher starts shortly after the server.
    (tmp_path / ".token-sidecar.toml").write_text('model = "gpt-4"\n')
    await bare.take("status/update", lambda u: "gpt-4 " in u["document"]["tooltip"])
    bare.ignore("status/update")


async def test_settings_are_requested_from_the_editor_after_each_change(bare: Client) -> None:
    section: dict[str, Any] = {"model": "gpt-4o"}
    bare.answer("workspace/configuration", lambda params: [section for _ in params["items"]])
    await bare.initialize(
        capabilities={"workspace": {"configuration": True}, "general": {}},
    )
    assert await model_of(bare) == "gpt-4o"
    section["model"] = "gpt-4"
    bare.notify("workspace/didChangeConfiguration", {"settings": None})
    async with asyncio.timeout(60):
        while await model_of(bare) != "gpt-4":
            await asyncio.sleep(0.01)


async def test_requests_are_answered_while_settings_keep_changing(bare: Client) -> None:
    """The client announces another change after each request for its settings."""

    def changed_again(params: Any) -> list[Any]:
        asyncio.get_running_loop().call_soon(
            bare.notify, "workspace/didChangeConfiguration", {"settings": None}
        )
        return [{"model": "gpt-4o"} for _ in params["items"]]

    bare.answer("workspace/configuration", changed_again)
    await bare.initialize(capabilities={"workspace": {"configuration": True}, "general": {}})
    assert await model_of(bare) == "gpt-4o"
    event = {"removed": [], "added": [{"uri": "file:///other", "name": "other"}]}
    bare.notify("workspace/didChangeWorkspaceFolders", {"event": event})
    assert await model_of(bare) == "gpt-4o"


async def test_defect_in_reading_settings_does_not_stop_counting(
    bare: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(bare.server.services, "tokenizers", fails)
    await bare.initialize()
    assert await model_of(bare) == "gpt-5"
    assert "ZeroDivisionError" in caplog.text


async def test_broken_settings_file_does_not_stop_counting(bare: Client, tmp_path: Path) -> None:
    (tmp_path / ".token-sidecar.toml").write_text('model = 5\n[[budget]\nfiles = "x"\n')
    await bare.initialize(root=tmp_path.as_uri())
    assert await model_of(bare) == "gpt-5"
    told = await bare.take("textDocument/publishDiagnostics")
    assert told["uri"].endswith("/.token-sidecar.toml")
    (problem,) = told["diagnostics"]
    assert problem["range"]["start"]["line"] == 1
    assert problem["message"].endswith("; this file is ignored")
    (tmp_path / ".token-sidecar.toml").write_text('model = "gpt-4"\n')
    await bare.take("textDocument/publishDiagnostics", lambda told: told["diagnostics"] == [])
    bare.ignore("textDocument/publishDiagnostics")  # A change may be reported twice.


async def test_a_file_that_breaks_keeps_its_last_valid_settings(
    bare: Client, tmp_path: Path
) -> None:
    (tmp_path / ".token-sidecar.toml").write_text('model = "gpt-4"\n')
    await bare.initialize(root=tmp_path.as_uri())
    assert await model_of(bare) == "gpt-4"
    (tmp_path / ".token-sidecar.toml").write_text('model = "gpt-4"\npresets = \n')
    told = await bare.take(
        "textDocument/publishDiagnostics", lambda told: told["diagnostics"] != []
    )
    assert (
        "the last valid settings of this file remain in effect" in told["diagnostics"][0]["message"]
    )
    assert await model_of(bare) == "gpt-4"
    bare.ignore("textDocument/publishDiagnostics")


async def test_a_root_on_a_disk_that_does_not_answer_delays_no_other_root(
    bare: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, load = threading.Event(), configuration._load_settings

    def load_late(path: Path | None, editor: Any, previous: Loaded) -> tuple[Loaded, Rules]:
        if path == tmp_path / "silent":
            answers.wait(60)
        return load(path, editor, previous)

    def find_late(folders: Iterable[str | os.PathLike[str]]) -> Roots:
        paths = list(folders)
        if str(tmp_path / "silent") in map(str, paths):
            hanging.append(paths)
            answers.wait(60)
        return find(paths)

    find, hanging = Roots.of, list[object]()
    monkeypatch.setattr(Roots, "of", find_late)
    monkeypatch.setattr(configuration, "_load_settings", load_late)
    monkeypatch.setattr(configuration, "READ_SECONDS", 2.0)
    folders = [{"uri": (tmp_path / name).as_uri(), "name": name} for name in ("near", "silent")]
    for name, model in (("near", "gpt-4"), ("silent", "gpt-4o")):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".token-sidecar.toml").write_text(f'model = "{model}"\n')
    await bare.initialize(workspaceFolders=folders)
    near, silent = ((tmp_path / name / "a.md").as_uri() for name in ("near", "silent"))
    bare.open("hello", uri=near)
    assert (await bare.count(near))["model"] == "gpt-4"
    assert bare.server.services.calibrations.known is not None
    await bare.take("status/update", lambda u: "usable window" in u["document"]["tooltip"])
    bare.ignore("status/update")
    assert len(hanging) <= 1, "a root that does not respond may block one other worker"
    answers.set()
    bare.open("hello", uri=silent)
    while (await bare.count(silent))["model"] != "gpt-4o":
        await asyncio.sleep(0.01)


async def test_no_diagnostic_names_a_file_that_must_not_be_opened(
    bare: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neovim opens all files that have diagnostics, and opening a FIFO would block forever."""
    os.mkfifo(tmp_path / ".token-sidecar.toml")
    await bare.initialize(root=tmp_path.as_uri())
    assert await model_of(bare) == "gpt-5"
    assert "is not a regular file" in caplog.text
    assert bare.unread == []


async def test_innermost_root_is_found_by_whole_path_parts(bare: Client, tmp_path: Path) -> None:
    for name, model in (("proj", "gpt-4"), ("project2", "gpt-4o")):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".token-sidecar.toml").write_text(f'model = "{model}"\n')
    folders = [{"uri": (tmp_path / n).as_uri(), "name": n} for n in ("proj", "project2")]
    await bare.initialize(workspaceFolders=folders, ignored=("status/update",))
    bare.open("hello", uri=(tmp_path / "project2" / "a.md").as_uri())
    count = await bare.count((tmp_path / "project2" / "a.md").as_uri())
    assert count["model"] == "gpt-4o"


async def test_a_broken_configuration_shows_in_the_tooltip_of_any_document(
    bare: Client, tmp_path: Path
) -> None:
    (tmp_path / ".token-sidecar.toml").write_text('[[budget]\nfiles = "README.md"\n')
    await bare.initialize(root=tmp_path.as_uri(), ignored=("textDocument/publishDiagnostics",))
    bare.open("hello world", uri=(tmp_path / "README.md").as_uri())
    shown = await bare.take("status/update", lambda u: u["document"] is not None)
    assert (
        "| Configuration | error in .token-sidecar.toml, line 1 |" in shown["document"]["tooltip"]
    )
    bare.ignore("status/update")


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
