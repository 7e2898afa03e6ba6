"""Tests the status when no document is open. It then describes a workspace with a conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.server.features import status_updates
from sidecar.workspace.status import StatusUpdate, status_update
from sidecar.workspace.workspace import Workspace
from tests.protocol.client import USER, Client


async def shown(client: Client) -> Any:
    """Return the next status that has no document."""
    return await client.take("status/update", lambda update: update["uri"] is None)


@pytest.mark.parametrize(("written", "part"), [("hide = true", ""), ('show = "tokens"', "tokens")])
async def test_status_without_a_document_follows_the_settings(
    bare: Client, tmp_path: Path, written: str, part: str
) -> None:
    await bare.initialize(root=tmp_path.as_uri())
    await bare.request("context/append", {"session": "s", "turns": [USER]})
    before = await shown(bare)
    assert "%" in before["text"]
    (tmp_path / "user-config.toml").write_text(f"[status]\n{written}\n")
    bare.notify("workspace/didChangeConfiguration", {"settings": None})
    update = await shown(bare)
    assert "%" not in update["text"]
    assert update["text"].endswith(part)
    assert bool(update["text"]) is bool(part)


async def start_with_conversation(
    client: Client, folder: Path
) -> tuple[Path, Path, dict[str, Any]]:
    """Open two folders, and append a message to a conversation in the first folder.

    Returns the folders and the params of the `context/append` request.
    """
    one, other = folder / "one", folder / "other"
    folders = []
    for root in (one, other):
        root.mkdir()
        folders.append({"uri": root.as_uri(), "name": root.name})
    await client.initialize(root=one.as_uri(), workspaceFolders=folders)
    named = {"workspace": one.as_uri(), "session": "s", "turns": [USER]}
    await client.request("context/append", named)
    return one, other, named


async def test_empty_workspace_does_not_hide_another_workspace(
    bare: Client, tmp_path: Path
) -> None:
    one, other, named = await start_with_conversation(bare, tmp_path)
    update = await shown(bare)
    assert (update["workspace"], "ctx" in update["text"]) == (one.as_uri(), True)
    await bare.request("context/set", {"workspace": other.as_uri(), "model": "gpt-4"})
    bare.ignore("context/warning")
    await bare.request("context/append", {**named, "workspace": other.as_uri()})
    update = await shown(bare)
    assert (update["workspace"], "ctx" in update["text"]) == (other.as_uri(), True)
    await bare.request("context/reset", {"workspace": other.as_uri(), "session": "s"})
    update = await shown(bare)
    assert (update["workspace"], "ctx" in update["text"]) == (one.as_uri(), True)


async def test_no_status_is_built_for_workspaces_that_are_not_shown(
    bare: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _other, named = await start_with_conversation(bare, tmp_path)
    before = await shown(bare)
    built: list[str | None] = []

    def build_and_note(workspace: Workspace, *args: Any) -> StatusUpdate:
        built.append(workspace.uri)
        return status_update(workspace, *args)

    monkeypatch.setattr(status_updates, "status_update", build_and_note)
    await bare.request("context/append", named)
    while (await shown(bare))["context"]["tokens"] == before["context"]["tokens"]:
        pass
    assert set(built) == {one.as_uri()}
