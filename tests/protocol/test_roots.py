"""Tests that budgets apply whichever links lead to a root, and that a closed root is released."""

from __future__ import annotations

import asyncio
import gc

# token-budget: ignore (sample budgets)
import os
import subprocess
import weakref
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.client import Client

BUDGET = '[[budget]]\nfiles = "sub/*.md"\nmax-tokens = 5\n'
SUM = '[[budget]]\nfiles = "*.md"\nmax-tokens = 20\nsum = true\n'
LONG = "word " * 50
PUSH: dict[str, Any] = {"textDocument": {"publishDiagnostics": {}}}


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Return a folder by its real path, and through a link to it and to the folder above."""
    real = tmp_path / "above/real"
    (real / "sub").mkdir(parents=True)
    (real / ".token-sidecar.toml").write_text(BUDGET)
    (tmp_path / "link").symlink_to("above/real")
    (tmp_path / "other").symlink_to("above")
    return {"real": real, "link": tmp_path / "link", "above": tmp_path / "other/real"}


@pytest.mark.parametrize("root", ["real", "link", "above"])
@pytest.mark.parametrize("document", ["real", "link", "above"])
async def test_budgets_apply_through_links(
    bare: Client, folders: dict[str, Path], root: str, document: str
) -> None:
    await bare.initialize(
        root=folders[root].as_uri(), capabilities=PUSH, ignored=("status/update",)
    )
    uri = (folders[document] / "sub/ä b.md").as_uri()
    bare.open(LONG, uri)
    told = await bare.take("textDocument/publishDiagnostics", lambda p: p["diagnostics"])
    assert told["uri"] == uri
    assert told["diagnostics"][0]["code"] == "budget-exceeded"
    assert told["diagnostics"][0]["message"].startswith("sub/ä b.md is ")
    bare.change({"text": "short"}, uri=uri)
    told = await bare.take("textDocument/publishDiagnostics", lambda p: not p["diagnostics"])
    assert told["uri"] == uri


async def test_a_root_that_is_added_later_gets_its_documents(
    bare: Client, folders: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "first").mkdir()
    await bare.initialize(
        root=(tmp_path / "first").as_uri(), capabilities=PUSH, ignored=("status/update",)
    )
    bare.open(LONG, (folders["link"] / "sub/a.md").as_uri())
    added = [{"uri": folders["real"].as_uri(), "name": "real"}]
    event = {"event": {"added": added, "removed": []}}
    bare.notify("workspace/didChangeWorkspaceFolders", event)
    told = await bare.take("textDocument/publishDiagnostics", lambda p: p["diagnostics"])
    assert told["uri"].endswith("/link/sub/a.md")


async def test_a_linked_file_outside_of_the_root_has_no_budget(
    bare: Client, folders: dict[str, Path], tmp_path: Path
) -> None:
    await bare.initialize(
        root=folders["link"].as_uri(), capabilities=PUSH, ignored=("status/update",)
    )
    outside = tmp_path / "above/sub/a.md"
    outside.parent.mkdir()
    bare.open(LONG, outside.as_uri())
    await bare.server.services.link_document(outside.as_uri())
    assert bare.server.services.roots.of_document(outside.as_uri()).path is None


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True)


def in_place(path: Path) -> None:
    path.write_text(LONG)


def replaced(path: Path) -> None:
    (path.parent / "new").write_text(LONG)
    os.replace(path.parent / "new", path)


def tracked(path: Path) -> None:
    (path.parent / "more.md").write_text(LONG)
    git(path.parent, "add", "more.md")


@pytest.mark.parametrize("change", [in_place, replaced, tracked])
@pytest.mark.parametrize("is_linked", [False, True])
async def test_a_shared_budget_follows_its_other_files(
    bare: Client, folders: dict[str, Path], change: Any, is_linked: bool
) -> None:
    real = folders["real"]
    git(real, "init", "-q")
    (real / ".token-sidecar.toml").write_text(SUM)
    (real / "other.md").write_text("short\n")
    git(real, "add", ".")
    await bare.initialize(root=real.as_uri(), capabilities=PUSH, ignored=("status/update",))
    uri = (folders["link" if is_linked else "real"] / "own.md").as_uri()
    bare.open("word " * 16, uri)
    told = await bare.take("textDocument/publishDiagnostics", lambda p: p["diagnostics"])
    assert (told["uri"], told["diagnostics"][0]["code"]) == (uri, "budget-near")
    change(real / "other.md")
    told = await bare.take("textDocument/publishDiagnostics", lambda p: p["diagnostics"])
    assert (told["uri"], told["diagnostics"][0]["code"]) == (uri, "budget-exceeded")
    bare.ignore("textDocument/publishDiagnostics")


TURN = {"role": "user", "content": "hello world"}


async def test_closed_folder_drops_its_conversations(bare: Client, tmp_path: Path) -> None:
    """A server may run for weeks while folders are opened and closed."""
    uri = tmp_path.as_uri()
    await bare.initialize(root=uri, ignored=("status/update", "context/warning"))
    await bare.request("context/append", {"workspace": uri, "session": "a", "turns": [TURN]})
    await bare.request("context/fit", {"workspace": uri, "session": "a", "maxTokens": 5})
    await bare.request("context/sessions", {"workspace": uri, "all": True})
    await bare.request("cost/detail", {"workspace": uri})
    gone = weakref.ref(bare.server.services.roots.find(uri))
    folders = {"added": [], "removed": [{"uri": uri, "name": "x"}]}
    bare.notify("workspace/didChangeWorkspaceFolders", {"event": folders})
    async with asyncio.timeout(60):
        # Work that started before the folder was closed is finished first.
        while gone() is not None:
            await asyncio.sleep(0.05)
            gc.collect()


async def test_late_request_does_not_restore_a_closed_folder(bare: Client, tmp_path: Path) -> None:
    uri = tmp_path.as_uri()
    await bare.initialize(root=uri)
    services = bare.server.services
    workspace = services.roots.find(uri)
    folders = {"added": [], "removed": [{"uri": uri, "name": "x"}]}
    bare.notify("workspace/didChangeWorkspaceFolders", {"event": folders})
    services.conversations(workspace)
    gone = weakref.ref(workspace)
    del workspace
    async with asyncio.timeout(60):
        while gone() is not None:
            await asyncio.sleep(0.05)
            gc.collect()
