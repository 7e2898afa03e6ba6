"""Tests when `status/update` is sent: after changes, by time alone, and without a document."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sidecar.agents.session_events import StoredSession
from sidecar.models import catalogue
from sidecar.server.features import status_updates
from sidecar.server.features.status_updates import StatusUpdates
from sidecar.workspace import sessions
from sidecar.workspace.status import StatusUpdate, status_update
from sidecar.workspace.workspace import Workspace
from tests.protocol.client import URI, USER, Client, edit, until
from tests.truth import truth


async def test_status_is_sent_once_for_an_opened_document(client: Client) -> None:
    client.open("hello world")
    update = await client.take("status/update")
    assert (update["uri"], update["version"], update["workspace"]) == (URI, 1, "file:///ws")
    assert update["document"]["tokens"] == 2
    assert update["text"].startswith("2 tokens")
    assert update["severity"] == "ok"


async def test_an_empty_document_has_a_status(client: Client) -> None:
    client.open("")
    assert (await client.take("status/update"))["document"]["tokens"] == 0


async def test_long_document_can_be_edited_and_closed_before_its_count(
    client: Client,
) -> None:
    text = "word and word;\n" * 20_000
    client.open(text)
    client.change(edit((0, 0), (0, 0), "more "))
    assert (await client.count())["tokens"] == truth("more " + text)
    client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
    client.open("short")
    update = await client.take("status/update", lambda u: u["document"]["tokens"] == truth("short"))
    assert update["document"]["method"] == "exact"
    client.ignore("status/update")


async def opened(client: Client, text: str) -> None:
    """Open a document, and wait for its final status after prices have been loaded."""
    client.open(text)
    await client.take("status/update", is_priced)
    client.unread.clear()


def is_priced(update: Any) -> bool:
    tooltip = update["document"]["tooltip"]
    return "usable window" in tooltip and "as input" in tooltip


async def test_status_is_sent_again_for_a_document_that_is_opened_twice(client: Client) -> None:
    await opened(client, "hello world")
    for text in ("hello world", "hello"):
        client.open(text)
        update = await client.take("status/update", is_priced)
        assert update["document"]["tokens"] == truth(text)


async def test_windows_and_prices_are_sent_if_the_list_is_already_loaded(
    bare: Client,
) -> None:
    catalogue.refresh()
    await bare.initialize()
    bare.open("hello world")
    await bare.take("status/update", is_priced)
    bare.ignore("status/update")


async def test_status_is_sent_only_if_it_has_changed(client: Client) -> None:
    await opened(client, "hello world")
    client.change(edit((0, 11), (0, 11), " again"))
    update = await client.take("status/update")
    assert (update["document"]["tokens"], update["version"]) == (3, 2)
    client.change(edit((0, 0), (0, 0), ""))
    await asyncio.sleep(0.3)
    assert client.unread == []


@pytest.mark.real_delays
async def test_many_edits_cause_one_update(client: Client) -> None:
    await opened(client, "")
    for _ in range(200):
        client.change(edit((0, 0), (0, 0), "word "))
    update = await client.take("status/update")
    assert (update["version"], update["document"]["tokens"]) == (201, truth("word " * 200))
    assert client.unread == []


@pytest.mark.real_delays
async def test_status_is_updated_during_typing(client: Client) -> None:
    client.open("")
    await client.take("status/update")
    typed = 0
    async with asyncio.timeout(60):
        while len(client.unread) < 2:  # More keys must not restart the timer.
            client.change(edit((0, 0), (0, 0), "word "))
            typed += 1
            await asyncio.sleep(0.02)
    update = await client.take("status/update", lambda u: u["version"] == 1 + typed)
    assert update["document"]["tokens"] == truth("word " * typed)
    client.ignore("status/update")


async def test_large_document_shows_an_estimate_until_it_is_counted(client: Client) -> None:
    text = "".join(f"def function_{n}(x): return x * {n}\n" for n in range(30_000))
    client.open(text)
    first = await client.take("status/update")
    assert first["document"]["method"] == "estimate"
    assert first["text"].startswith("~")
    second = await client.take("status/update")
    assert (second["document"]["method"], second["document"]["tokens"]) == ("exact", truth(text))


async def test_a_closed_document_gets_no_more_updates(client: Client) -> None:
    client.open("hello")
    await client.take("status/update")
    client.change(edit((0, 0), (0, 0), "more words "))
    client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
    await asyncio.sleep(0.2)
    assert client.unread == []


async def test_document_outside_every_root_has_a_status(client: Client) -> None:
    client.open("hello", uri="file:///ws2/doc.md")
    assert (await client.take("status/update"))["workspace"] is None


async def test_context_is_shown_after_the_last_document_is_closed(client: Client) -> None:
    """The context changes while a document is open. The status then shows the new context."""
    await client.request("context/append", {"session": "s", "turns": [user("hello " * 40)]})
    bare = await client.take("status/update")
    assert bare["uri"] is None
    client.open("hello world")
    await client.take("status/update", lambda update: update["uri"] == URI)
    await client.request("context/append", {"session": "s", "turns": [user("more " * 4000)]})
    grown = await client.take("status/update", lambda update: update["uri"] == URI)
    assert grown["context"]["tokens"] > bare["context"]["tokens"] + 3000
    client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
    left = await client.take("status/update")
    assert (left["uri"], left["document"], left["context"]) == (None, None, grown["context"])
    client.open("hello world")
    await client.take("status/update", lambda update: update["uri"] == URI)
    client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
    assert await client.take("status/update") == left


def user(content: str) -> dict[str, str]:
    """Return a user turn."""
    return {"role": "user", "content": content}


async def test_a_defect_in_the_status_is_logged(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client.open("hello world")
    await client.take("status/update")
    monkeypatch.setattr(logging.getLogger("sidecar"), "propagate", True)
    monkeypatch.setattr(client.feature(StatusUpdates), "_send", None)
    client.change(edit((0, 0), (0, 0), "more "))
    await until(lambda: "status: TypeError" in caplog.text)


async def test_each_recorded_call_changes_the_status_even_without_a_price(client: Client) -> None:
    """When the status changes, editors update an open cost report."""
    client.open("hello world")
    call = {"model": "a-model-without-a-price", "usage": {"prompt_tokens": 5}}
    seen = {0}
    for _ in range(2):
        await client.request("cost/record", call)
        update = await client.take(
            "status/update", lambda status: status["costRevision"] not in seen
        )
        seen.add(update["costRevision"])
    client.ignore("status/update")


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
    bare.ignore("status/update")


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


@pytest.fixture
async def midnight_is_near(client: Client, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Set a time zone in which the day ends in a few seconds, once the server has started."""
    await until(lambda: client.server.services.windows.ready)
    # In the time zone with this offset from UTC, in seconds, midnight is four seconds away.
    east = -int(time.time() + 4) % 86_400
    west = -east if east <= 43_200 else 86_400 - east
    hours, rest = divmod(abs(west), 3_600)
    zone = f"XST{'-' if west < 0 else '+'}{hours}:{rest // 60:02}:{rest % 60:02}"
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot change the zone of a process")
async def test_todays_costs_are_reset_at_midnight(midnight_is_near: None, client: Client) -> None:
    call = {"model": "gpt-4o", "usage": {"prompt_tokens": 400_000, "completion_tokens": 0}}
    await client.request("cost/record", call)
    shown = await client.take("status/update", lambda status: bool(status["cost"]))
    assert shown["cost"]["text"] == "$1.00 today"
    shown = await client.take(
        "status/update", lambda status: status["cost"]["costUsd"] == 0, seconds=20
    )
    assert shown["cost"]["text"] == "$0.00 today"
    assert "| Today | $0.00 in all workspaces |" in shown["cost"]["tooltip"]
    assert "| This workspace | $1.00 in total |" in shown["cost"]["tooltip"]
    client.ignore("status/update")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot change the zone of a process")
async def test_a_day_whose_calls_have_no_price_ends_at_midnight(
    midnight_is_near: None, client: Client
) -> None:
    """What was spent today is unknown, and not shown, until the day is over."""
    usage = {"prompt_tokens": 400_000, "completion_tokens": 0}
    long_ago = (datetime.now(UTC) - timedelta(days=3)).isoformat()
    await client.request("cost/record", {"model": "no-price", "usage": usage})
    await client.request("cost/record", {"model": "gpt-4o", "usage": usage, "at": long_ago})
    shown = await client.take("status/update", lambda status: bool(status["cost"]), seconds=20)
    assert shown["cost"]["text"] == "$0.00 today"
    client.ignore("status/update")


async def test_agents_session_is_shown_once_the_plugins_conversation_is_old(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "PROTOCOL_OUTRANKS", timedelta(seconds=2))
    turn = {"role": "user", "content": "some words"}
    own = await client.request("context/append", {"session": "mine", "turns": [turn]})
    services = client.server.services
    agents = StoredSession(
        id="a1", source="codex", updated_at=datetime.now(UTC), model="gpt-5", tokens=5_000
    )
    services.sessions(services.roots.default).set_agent_sessions([agents])

    def shows(tokens: int) -> Any:
        return lambda status: bool(status["context"]) and status["context"]["tokens"] == tokens

    await client.take("status/update", shows(own["tokens"]))
    await client.take("status/update", shows(5_000), seconds=20)
    client.ignore("status/update")
