"""Tests that settings from files and from the editor apply without a restart."""

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


async def test_a_project_file_names_the_model(bare: Client, tmp_path: Path) -> None:
    (tmp_path / ".token-sidecar.toml").write_text('model = "gpt-4"\n')
    await bare.initialize(root=tmp_path.as_uri())
    assert await model_of(bare) == "gpt-4"


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
    await bare.initialize(workspaceFolders=folders)
    bare.ignore("status/update")
    bare.open("hello", uri=(tmp_path / "project2" / "a.md").as_uri())
    count = await bare.count((tmp_path / "project2" / "a.md").as_uri())
    assert count["model"] == "gpt-4o"


async def test_a_broken_configuration_shows_in_the_tooltip_of_any_document(
    bare: Client, tmp_path: Path
) -> None:
    (tmp_path / ".token-sidecar.toml").write_text('[[budget]\nfiles = "README.md"\n')
    bare.ignore("textDocument/publishDiagnostics")
    await bare.initialize(root=tmp_path.as_uri())
    bare.open("hello world", uri=(tmp_path / "README.md").as_uri())
    shown = await bare.take("status/update", lambda u: u["document"] is not None)
    assert (
        "| Configuration | error in .token-sidecar.toml, line 1 |" in shown["document"]["tooltip"]
    )
    bare.ignore("status/update")
