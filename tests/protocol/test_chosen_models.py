"""Tests which model applies: the selected one, the session's, or the one that a reply names."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.claude import MODEL, ClaudeHome, everyday
from sidecar.config.settings import DEFAULT_MODEL
from tests.protocol.client import Client

HAIKU = "claude-haiku-4-5"


@pytest.fixture
async def beside_an_agent(bare: Client, tmp_path: Path) -> Client:
    """A client in a workspace with an agent's session, but no conversation."""
    return await start_beside_an_agent(bare, tmp_path)


async def start_beside_an_agent(bare: Client, tmp_path: Path, **options: Any) -> Client:
    home = ClaudeHome(tmp_path / "home" / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(minutes=50)
    everyday(home, tmp_path)
    bare.ignore("context/warning", "textDocument/publishDiagnostics")
    await bare.initialize(tmp_path.as_uri(), **options)
    bare.open("some words\n" * 9, (tmp_path / "a.md").as_uri())
    await bare.take("status/update", lambda status: bool(status["context"]))
    return bare


async def test_choosing_a_model_keeps_the_agents_session_shown(beside_an_agent: Client) -> None:
    client = beside_an_agent
    before = await client.request("context/usage", {})
    assert before["tokens"]
    await client.request("context/set", {"model": "gpt-4"})
    shown = await client.take("status/update", counts_for_gpt_4)
    assert shown["context"]["tokens"] == before["tokens"]
    client.ignore("status/update")
    after = await client.request("context/usage", {})
    assert (after["session"], after["model"]) == (before["session"], MODEL)
    rows = await client.request("context/sessions", {"all": True})
    assert [row["source"] for row in rows] == ["claude-code"]
    assert (await client.request("tokens/count", {"text": "x"}))["model"] == "gpt-4"


async def test_a_choice_can_be_undone(beside_an_agent: Client, tmp_path: Path) -> None:
    client = beside_an_agent
    await client.request("context/set", {"model": "gpt-4"})
    await client.take("status/update", counts_for_gpt_4)
    await client.request("context/set", {"model": None})
    await client.take("status/update", lambda status: status["model"] == MODEL)
    client.ignore("status/update")
    assert await models_shown(client, (tmp_path / "a.md").as_uri()) == {MODEL}
    turns = [{"role": "user", "content": "word " * 9}]
    usage = await client.request("context/append", {"session": "own", "turns": turns})
    assert usage["model"] == DEFAULT_MODEL


async def test_undoing_a_choice_returns_a_conversation_to_the_configured_model(
    talker: Client, tmp_path: Path
) -> None:
    await talker.request("context/append", {"turns": [{"role": "user", "content": "word " * 9}]})
    await talker.request("context/set", {"model": "gpt-4"})
    assert (await talker.request("context/usage", {}))["model"] == "gpt-4"
    usage = await talker.request("context/set", {"model": None})
    assert usage["model"] == (await talker.request("context/usage", {}))["model"] == DEFAULT_MODEL


@pytest.mark.parametrize("model", ["gpt-4o", DEFAULT_MODEL])
@pytest.mark.parametrize("place", ["project", "user", "editor"])
async def test_a_configured_model_precedes_the_agents(
    bare: Client, tmp_path: Path, place: str, model: str
) -> None:
    options: dict[str, Any] = {}
    if place == "editor":
        options["initializationOptions"] = {"tokenSidecar": {"model": model}}
    else:
        user = Path(os.environ["TOKEN_SIDECAR_CONFIG"])
        file = tmp_path / ".token-sidecar.toml" if place == "project" else user
        file.write_text(f'model = "{model}"\n')
    client = await start_beside_an_agent(bare, tmp_path, **options)
    client.ignore("status/update")
    assert await models_shown(client, (tmp_path / "a.md").as_uri()) == {model}
    assert (await client.request("context/usage", {}))["model"] == MODEL
    await client.request("context/set", {"model": "gpt-4"})
    assert await models_shown(client, (tmp_path / "a.md").as_uri()) == {"gpt-4"}
    await client.request("context/set", {"model": None})
    assert await models_shown(client, (tmp_path / "a.md").as_uri()) == {model}


async def models_shown(client: Client, uri: str) -> set[str]:
    """Return the models of all counts that name none: of a text and of the open document."""
    counts = [
        await client.request("tokens/count", {"text": "some words"}),
        await client.request("tokens/count", {"textDocument": {"uri": uri}}),
        await client.request("tokens/fit", {"text": "some words", "maxTokens": 5}),
    ]
    return {count["model"] for count in counts}


async def test_chosen_model_applies_to_the_next_session(beside_an_agent: Client) -> None:
    client = beside_an_agent
    client.ignore("status/update")
    await client.request("context/set", {"model": "gpt-4"})
    turns = [{"role": "user", "content": "word " * 9}]
    for session in (None, "named"):
        params = {"turns": turns} | ({"session": session} if session else {})
        usage = await client.request("context/append", params)
        assert (usage["model"], usage["session"]["source"]) == ("gpt-4", "protocol")


async def test_reset_explains_that_an_agents_session_is_kept(beside_an_agent: Client) -> None:
    client = beside_an_agent
    client.ignore("status/update")
    stays = "The shown session belongs to claude-code and cannot be reset here."
    assert (await client.request("context/reset", {}))["text"] == stays
    await client.request("context/set", {"model": "gpt-4"})
    assert (await client.request("context/reset", {}))["text"] == stays
    assert (await client.request("context/usage", {}))["session"]["source"] == "claude-code"
    await client.request("context/append", {"turns": [{"role": "user", "content": "Hello."}]})
    result = await client.request("context/reset", {})
    assert (result["tokens"], result["text"].split(".")[0]) == (
        None,
        "The conversation's context has been reset",
    )


def counts_for_gpt_4(status: Any) -> bool:
    return status["document"] is not None and "gpt-4 " in status["document"]["tooltip"]


def chat(model: str, reply_id: str, prompt: int) -> dict[str, Any]:
    """Return a two-token reply in OpenAI's format."""
    message = {"role": "assistant", "content": "x"}
    return {
        "id": reply_id,
        "object": "chat.completion",
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": 2},
    }


async def billed(client: Client) -> list[str]:
    rows = (await client.request("cost/detail", {"by": ["model"]}))["rows"]
    return [row["model"] for row in rows]


async def test_reply_of_another_model_is_billed_but_not_used_for_calibration(
    talker: Client,
) -> None:
    system = "word " * 500
    await talker.request("context/set", {"session": "a", "model": "gpt-5", "systemPrompt": system})
    reply = {"session": "a", "response": chat(HAIKU, "r1", 900)}
    answer = await talker.request("context/response", reply)
    assert (answer["model"], answer["calibration"]) == (HAIKU, None)
    assert await billed(talker) == [HAIKU]
    usage = await talker.request("context/usage", {"session": "a"})
    assert (usage["tokens"], usage["model"]) == (902, "gpt-5")
    turn = {"role": "user", "content": "word " * 500}
    await talker.request("context/append", {"session": "a", "turns": [turn]})
    reply = {"session": "a", "response": chat(HAIKU, "r2", 2_500)}
    await talker.request("context/response", reply)
    usage = await talker.request("context/usage", {"session": "a"})
    assert (usage["tokens"], usage["calibration"]) == (2_502, None)


async def test_session_without_a_model_uses_that_of_its_replies(talker: Client) -> None:
    await talker.request("context/response", {"session": "a", "response": chat(HAIKU, "r1", 900)})
    usage = await talker.request("context/usage", {"session": "a"})
    assert (usage["tokens"], usage["model"], usage["limit"]) == (902, HAIKU, 200_000)
    assert await billed(talker) == [HAIKU]


async def test_model_of_one_session_does_not_affect_another(talker: Client) -> None:
    system = "word " * 500
    await talker.request("context/set", {"session": "a", "model": "gpt-5", "systemPrompt": system})
    named = {"session": "a", "model": HAIKU, "response": chat(HAIKU, "r1", 900)}
    await talker.request("context/response", named)
    reply = chat("gpt-4o-2024-08-06", "r2", 50)
    answer = await talker.request("context/response", {"session": "c", "response": reply})
    usage = await talker.request("context/usage", {"session": "c"})
    assert (usage["tokens"], usage["model"]) == (52, "gpt-4o-2024-08-06")
    assert answer["calibration"] == usage["calibration"] is None
