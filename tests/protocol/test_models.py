"""Tests `tokens/fit`, `models/list` and `capabilities/probe`, and which model and window apply."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.claude import MODEL, ClaudeHome, everyday
from sidecar.config.paths import STORED_LIST, state_dir
from sidecar.config.settings import DEFAULT_MODEL
from sidecar.models import catalogue
from sidecar.models.catalogue import provider_of
from tests.protocol.client import URI, Client, RpcError, edit
from tests.truth import truth
from tests.unit.cost_calls import store_price_list
from tests.unit.endpoints_fake_server import llamacpp

LINES = "".join(f"line number {n}\n" for n in range(200))


async def test_text_and_range_are_fitted(talker: Client) -> None:
    fitted = await talker.request("tokens/fit", {"text": LINES, "maxTokens": 100, "mode": "start"})
    assert LINES.startswith(fitted["text"])
    assert fitted["tokens"] == truth(fitted["text"]) <= 100
    assert fitted["changed"]
    assert fitted["removedLines"] == 200 - fitted["text"].count("\n")
    talker.open(LINES)
    span = edit((10, 0), (12, 0), "")["range"]
    same = await talker.request(
        "tokens/fit", {"textDocument": {"uri": URI}, "range": span, "maxTokens": 100}
    )
    assert (same["text"], same["changed"]) == ("line number 10\nline number 11\n", False)


@pytest.mark.parametrize(
    "params",
    [{"text": "a"}, {"text": "a", "maxTokens": -1}, {"maxTokens": 5}, {"text": "a", "mode": "x"}],
)
async def test_fit_refuses_bad_params(client: Client, params: dict[str, object]) -> None:
    assert await client.refused("tokens/fit", params) == {"kind": "badParams", "retryable": False}


async def test_models_are_found_by_words(client: Client) -> None:
    models = await client.request("models/list", {"query": "openai gpt-4o-mini"})
    mini = next(model for model in models if model["id"] == "gpt-4o-mini")
    assert (mini["provider"], mini["tokenizer"], mini["method"]) == (
        "openai",
        "o200k_base",
        "exact",
    )
    assert mini["contextWindow"] == 128_000
    assert await client.request("models/list", {"query": "no such model anywhere"}) == []


async def test_window_is_sent_once_the_catalogue_is_loaded(client: Client) -> None:
    client.open("hello world")
    update = await client.take("status/update", lambda u: u["document"]["percent"] is not None)
    assert update["text"] == "2 tokens"
    count = await client.count(model="gpt-4o")
    assert (count["limit"], count["percent"]) == (128_000, 0)
    client.ignore("status/update")


async def test_another_process_downloads_a_newer_list(
    bare: Client, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    stored = state_dir() / STORED_LIST
    request.addfinalizer(catalogue.refresh)  # the list is shared by all tests in this process
    request.addfinalizer(partial(stored.unlink, missing_ok=True))
    (tmp_path / ".token-sidecar.toml").write_text('model = "gpt-9"\n')
    await bare.initialize(root=tmp_path.as_uri())
    uri = (tmp_path / "doc.md").as_uri()
    bare.open(LINES, uri)
    await bare.server.services.load_prices()
    for window, price in ((54_321, 7), (65_432, 8)):
        store_price_list(stored, "gpt-9", window, price)
        shown = f"{window:,} tokens (from the model catalogue)"

        def is_shown(status: Any, shown: str = shown) -> bool:
            return shown in status["document"]["tooltip"]

        await bare.take("status/update", is_shown)
        count = await bare.count(uri)
        assert count["limit"] == window
        assert count["inputCostUsd"] == pytest.approx(count["tokens"] * price / 1e6)
        listed = await bare.request("models/list", {"query": "gpt-9", "choices": True})
        assert [one["id"] for one in listed] == ["gpt-9"]
    bare.ignore("status/update")


async def test_a_setting_caps_the_window(bare: Client, tmp_path: Path) -> None:
    (tmp_path / ".token-sidecar.toml").write_text("[context]\nlimit = 1000\nreserve = 500\n")
    await bare.initialize(root=tmp_path.as_uri())
    async with asyncio.timeout(60):
        while (count := await bare.request("tokens/count", {"text": LINES}))["limit"] is None:
            await asyncio.sleep(0.05)
    usable = 1000 - 250
    assert (count["limit"], count["percent"]) == (1000, min(100, 100 * truth(LINES) // usable))


async def test_choices_announce_how_a_model_is_counted(talker: Client) -> None:
    """Each name is listed once, with its actual counting method."""
    rows = await talker.request("models/list", {"choices": True})
    names = [row["id"] for row in rows]
    assert len(set(names)) == len(names) > 1000
    assert names.index("gpt-5") < names.index("openai/gpt-5")
    for query in ("gpt-4o", "openai gpt-4", "glm-4.7", "claude haiku"):
        for row in await talker.request("models/list", {"choices": True, "query": query}):
            (count,) = (await talker.request("tokens/count", {"text": "x", "models": [row["id"]]}))[
                "models"
            ]
            assert (count["model"], count["tokenizer"]) == (row["id"], row["tokenizer"])
            if row["contextWindow"] is not None:
                assert count["limit"] == row["contextWindow"], row
    assert {row["provider"] for row in rows} >= {"openai", "anthropic", "azure", "openrouter"}


def _picker(config: Path, monkeypatch: pytest.MonkeyPatch, url: str, models: str) -> None:
    text = f'[tokenize]\nuse-endpoint = true\n[[endpoint]]\nurl = "{url}"\nmodels = {models}\n'
    config.write_text(text)
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(config))
    monkeypatch.setenv("TOKEN_SIDECAR_STATE", str(config.parent / "state"))


async def _names(client: Client, **more: Any) -> list[str]:
    return [row["id"] for row in await client.request("models/list", {"choices": True, **more})]


async def test_choices_begin_with_used_and_declared_models(
    bare: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current model comes first, then recently used models, then declared models."""
    bare.ignore("status/update")
    _picker(tmp_path / "config.toml", monkeypatch, "http://127.0.0.1:9", '["my-own", "tiny", "x*"]')
    await bare.initialize(root=tmp_path.as_uri())
    await bare.request("context/set", {"model": "gpt-4o"})
    usage = {"input_tokens": 9, "output_tokens": 2}
    for model in ("claude-haiku-4-5", "gpt-4o", "claude-haiku-4-5", "tiny"):
        await bare.request("cost/record", {"model": model, "usage": usage})
    names = await _names(bare)
    assert names[:4] == ["gpt-4o", "claude-haiku-4-5", "tiny", "my-own"]
    assert len(names) == len(set(names))
    assert provider_of(names[4]), "the price list follows"
    assert await _names(bare, query="my-own") == ["my-own"]


async def test_choices_include_models_of_declared_endpoints(
    bare: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list uses the server's last known response and sends no request."""
    bare.ignore("status/update")
    async with llamacpp("tiny", "small", "other-7b") as server:
        _picker(tmp_path / "config.toml", monkeypatch, server.url, '["absent", "tiny", "s*"]')
        await bare.initialize(root=tmp_path.as_uri())
        await bare.request("tokens/count", {"text": "hello world", "model": "absent"})
        asked = len(server.asked)
        names = await _names(bare)
        assert names[:4] == ["gpt-5", "absent", "tiny", "small"]
        assert "other-7b" not in names[:20], "no glob in the settings matches this model"
        assert len(server.asked) == asked
        await bare.server.services.aclose()


async def test_choices_are_for_the_named_workspace(
    bare: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _picker(tmp_path / "config.toml", monkeypatch, "http://127.0.0.1:9", '"tiny"')
    bare.ignore("status/update")
    roots = await _roots(bare, tmp_path, "one", "two")
    usage = {"input_tokens": 9, "output_tokens": 2}
    two = {"workspace": roots[1]}
    await bare.request("cost/record", {"model": "claude-haiku-4-5", "usage": usage, **two})
    assert (await _names(bare, **two))[:3] == ["model-two", "claude-haiku-4-5", "tiny"]
    assert (await _names(bare))[:2] == ["model-one", "tiny"], "defaults to the first root"
    with pytest.raises(RpcError) as caught:
        await _names(bare, workspace=tmp_path.as_uri())
    assert caught.value.data == {"kind": "badParams", "retryable": False}


async def _roots(bare: Client, folder: Path, *names: str) -> list[str]:
    """Open root folders, each with its own model, and return their URIs."""
    roots = [folder / name for name in names]
    for root in roots:
        root.mkdir()
        (root / ".token-sidecar.toml").write_text(f'model = "model-{root.name}"\n')
    folders = [{"uri": root.as_uri(), "name": root.name} for root in roots]
    await bare.initialize(root=None, workspaceFolders=folders)
    return [root.as_uri() for root in roots]


async def test_endpoints_of_the_named_root_are_probed(
    bare: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request can name a root, or a path or document in it. The default is the first root."""
    bare.ignore("status/update")
    async with llamacpp("model-one", "model-two", "model-three", "model-four") as server:
        _picker(tmp_path / "config.toml", monkeypatch, server.url, '["model-*"]')
        _, two, three, four = await _roots(bare, tmp_path, "one", "two", "three", "four")

        async def probed(**params: Any) -> list[str]:
            result = await bare.request("capabilities/probe", params)
            assert {(row["text"], row["limit"]) for row in result} == {("supported", 2048)}
            return [row["model"] for row in result]

        assert await probed(workspace=two) == ["model-two"]
        assert await probed(workspace=f"{three}/a.md") == ["model-two", "model-three"]
        assert (await probed(textDocument={"uri": f"{four}/a.md"}))[2:] == ["model-four"]
        assert (await probed())[3:] == ["model-one"]
        known = await bare.request("capabilities/list", {"workspace": two})
        assert len(known) == 4
        for method in ("capabilities/probe", "capabilities/list"):
            assert await bare.refused(method, {"workspace": tmp_path.as_uri()}) == {
                "kind": "badParams",
                "retryable": False,
            }
        await bare.server.services.aclose()


async def test_misspelled_model_is_explained_in_the_tooltip(client: Client) -> None:
    await client.request("context/set", {"model": "gtp-5-mini"})
    client.open("hello world")
    told = "not a known model; did you mean gpt-5-mini or "
    await client.take(
        "status/update", lambda update: told in (update["document"] or {}).get("tooltip", "")
    )
    await client.request("context/set", {"model": "gpt-5-mini"})
    await client.take(
        "status/update",
        lambda update: (
            "400,000 tokens (from the model catalogue), 0 %"
            in (update["document"] or {}).get("tooltip", "")
        ),
    )
    client.ignore("status/update")


async def test_model_with_a_user_price_is_known(client: Client) -> None:
    told, name = "did you mean", "gtp-5-mini"
    await client.request("context/set", {"model": name})
    client.open("hello world")

    def tooltip(update: Any) -> str:
        return str((update["document"] or {}).get("tooltip", ""))

    await client.take("status/update", lambda update: told in tooltip(update))
    price = {"models": [name], "input": 1.0, "output": 2.0}
    settings = {"settings": {"tokenSidecar": {"price": [price]}}}
    client.notify("workspace/didChangeConfiguration", settings)
    await client.take(
        "status/update", lambda update: name in tooltip(update) and told not in tooltip(update)
    )
    client.ignore("status/update")


async def test_window_of_an_unknown_model_is_marked_as_assumed(client: Client) -> None:
    await client.request("models/list", {"query": "gpt-5"})  # waits for the model catalogue
    params = {"text": "word " * 20_000, "models": ["nobody-knows-me", "gpt-4", "gpt-5"]}
    answer = await client.request("tokens/count", params)
    unknown, small, wide = answer["models"]
    assert (unknown["limit"], unknown["limitSource"]) == (16_384, "default")
    assert (wide["limit"], wide["limitSource"]) == (400_000, "catalogue")
    await client.request("context/set", {"model": "nobody-knows-me"})
    client.open("hello world")
    known = "16,384 tokens (assumed)"
    update = await client.take(
        "status/update", lambda update: known in (update["document"] or {}).get("tooltip", "")
    )
    assert "16,384 tokens (assumed), ~0 % of the usable window" in update["document"]["tooltip"]
    await client.request("context/set", {"model": "gpt-4"})
    client.change({"text": "word " * 20_000})
    short = f"8,192 tokens (from the model catalogue), exceeded by {small['tokens'] - 8_192:,}"
    await client.take("status/update", lambda update: short in update["document"]["tooltip"])
    client.ignore("status/update")


async def test_comparison_text_lists_each_model_once(client: Client) -> None:
    answer = await client.request("tokens/count", {"text": "日本語", "models": ["gpt-4", "gpt-4"]})
    head, *rows = answer["text"].splitlines()
    assert head.split() == ["model", "tokens", "of", "window", "input", "cost", "method"]
    assert [row.split()[:2] for row in rows] == [
        ["gpt-5", str(truth("日本語"))],
        ["gpt-4", str(truth("日本語", "cl100k_base"))],
    ]
    assert (await client.request("tokens/count", {"text": "日本語"}))["text"] == ""


HAIKU = "claude-haiku-4-5"


@pytest.fixture
async def beside_an_agent(bare: Client, tmp_path: Path) -> Client:
    """A client in a workspace with an agent's session, but no conversation."""
    return await start_beside_an_agent(bare, tmp_path)


async def start_beside_an_agent(bare: Client, tmp_path: Path, **options: Any) -> Client:
    home = ClaudeHome(tmp_path / "home" / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(minutes=50)
    everyday(home, tmp_path)
    await bare.initialize(
        tmp_path.as_uri(), **options, ignored=("context/warning", "textDocument/publishDiagnostics")
    )
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
