"""Tests hovers, hints, code lenses and symbols of sections, and how they are registered."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any

import pytest

from tests.protocol.client import URI, Client
from tests.truth import truth

PLAN = "# Plan\n\nWhat to do.\n\n## Steps\n\n- 日本語🙂\n\n## Later\n\nnothing\n"
CODE = "import os\n\n\ndef f():\n    return 1\n\n\ndef g():\n    return 2\n"


async def hints(client: Client, uri: str = URI) -> list[tuple[int, int, str]]:
    span = {"start": {"line": 0, "character": 0}, "end": {"line": 99, "character": 0}}
    answer: list[dict[str, Any]] = await client.request(
        "textDocument/inlayHint", {"textDocument": {"uri": uri}, "range": span}
    )
    return [(h["position"]["line"], h["position"]["character"], h["label"]) for h in answer]


async def with_hints(bare: Client) -> None:
    await bare.initialize(
        initializationOptions={"tokenSidecar": {"inlayHints": True}}, ignored=("status/update",)
    )


async def test_hints_are_off_by_default(talker: Client) -> None:
    talker.open(PLAN)
    assert await hints(talker) == []


async def test_each_section_has_one_hint_at_its_end(bare: Client) -> None:
    await with_hints(bare)
    bare.open(PLAN)
    steps = PLAN[PLAN.index("## Steps") : PLAN.index("## Later")]
    later = PLAN[PLAN.index("## Later") :]
    assert await hints(bare) == [
        (10, 7, f"Later: {truth(later)} tokens · Plan: {truth(PLAN)} tokens"),
        (6, 7, f"{truth(steps)} tokens"),
    ]


async def test_each_block_of_code_has_one_hint(bare: Client) -> None:
    await with_hints(bare)
    uri = "file:///ws/code.py"
    bare.open(CODE, uri, "python")
    found = await hints(bare, uri)
    assert [line for line, _, _ in found] == [0, 4, 8]


async def test_document_hover_is_on_the_first_line_only(talker: Client) -> None:
    talker.open(PLAN)
    where: dict[str, Any] = {"textDocument": {"uri": URI}, "position": {"line": 0, "character": 2}}
    result = await talker.request("textDocument/hover", where)
    assert f"{truth(PLAN):,} tokens" in result["contents"]["value"]
    assert "gpt-5 (o200k_base)" in result["contents"]["value"]
    where["position"]["line"] = 3
    assert await talker.request("textDocument/hover", where) is None


@pytest.mark.parametrize("formats", [["plaintext"], ["html", "plaintext", "markdown"]])
async def test_hover_is_plain_text_for_clients_that_prefer_it(
    bare: Client, formats: list[str]
) -> None:
    able = {"textDocument": {"hover": {"contentFormat": formats}}}
    await bare.initialize(capabilities=able, ignored=("status/update",))
    bare.open("# Title_of *it*\n\nText.\n")
    where = {"textDocument": {"uri": URI}, "position": {"line": 0, "character": 0}}
    contents = (await bare.request("textDocument/hover", where))["contents"]
    assert contents["kind"] == "plaintext"
    document, title, table = contents["value"].split("\n\n")
    assert document.startswith("Document  8 tokens, exact, counted with")
    assert title == "Title_of it"
    assert "|" not in table
    assert re.search(r"^gpt-5 +8 +0 % +\S+ +exact$", table, re.MULTILINE)


async def test_hover_on_a_heading_compares_models(talker: Client) -> None:
    talker.open(PLAN)
    where = {"textDocument": {"uri": URI}, "position": {"line": 4, "character": 0}}
    result = await talker.request("textDocument/hover", where)
    steps = PLAN[PLAN.index("## Steps") : PLAN.index("## Later")]
    assert f"| gpt-5 | {truth(steps)} |" in result["contents"]["value"]
    assert f"| gpt-4 | {truth(steps, 'cl100k_base')} |" in result["contents"]["value"]
    assert "| claude-sonnet-4-5 | ~" in result["contents"]["value"]


async def test_symbols_are_a_tree_of_sections_with_tokens(talker: Client) -> None:
    talker.open(PLAN)
    (plan,) = await talker.request("textDocument/documentSymbol", {"textDocument": {"uri": URI}})
    assert (plan["name"], plan["detail"]) == ("Plan", f"{truth(PLAN)} tokens")
    assert [child["name"] for child in plan["children"]] == ["Steps", "Later"]


async def test_lenses_are_shown_only_if_enabled(bare: Client) -> None:
    await bare.initialize(
        initializationOptions={"tokenSidecar": {"codeLens": True}}, ignored=("status/update",)
    )
    bare.open(PLAN)
    lenses = await bare.request("textDocument/codeLens", {"textDocument": {"uri": URI}})
    assert [lens["range"]["start"]["line"] for lens in lenses] == [0, 4, 8]
    assert lenses[0]["command"]["title"] == f"{truth(PLAN)} tokens"


async def test_command_lists_the_heaviest_sections(talker: Client) -> None:
    talker.open(PLAN)
    result = await talker.request(
        "workspace/executeCommand",
        {"command": "tokenSidecar.server.heaviestSections", "arguments": [URI]},
    )
    assert result[0]["title"] == "Plan"
    told = await talker.take("window/showMessage")
    assert "Steps (line 5)" in told["message"]


HINT, LENS = "textDocument/inlayHint", "textDocument/codeLens"
SYMBOL = "textDocument/documentSymbol"
REGISTER = "client/registerCapability"
ON = {"tokenSidecar": {"inlayHints": True}}
BOTH = {"tokenSidecar": {"inlayHints": True, "codeLens": True}}
OFF: dict[str, Any] = {"tokenSidecar": {"model": "gpt-5"}}
FIELDS = ("inlayHintProvider", "codeLensProvider", "documentSymbolProvider")


def abilities(*, dynamic: bool, refresh: bool) -> dict[str, Any]:
    """Return client capabilities for hints, code lenses and symbols."""
    later, again = {"dynamicRegistration": dynamic}, {"refreshSupport": refresh}
    return {
        "textDocument": {"inlayHint": later, "codeLens": later, "documentSymbol": later},
        "workspace": {"inlayHint": again, "codeLens": again},
    }


class Asked(list[tuple[str, Any]]):
    """Records the requests from the server to the client."""

    METHODS = (
        "client/registerCapability",
        "client/unregisterCapability",
        "workspace/inlayHint/refresh",
        "workspace/codeLens/refresh",
    )

    def __init__(self, client: Client) -> None:
        super().__init__()
        for method in self.METHODS:
            client.answer(method, partial(self._take, method))

    def _take(self, method: str, params: Any) -> None:
        self.append((method, params))

    def names(self) -> list[str]:
        """Return the recorded requests' methods, and clear the record."""
        found = [method for method, _ in self]
        self.clear()
        return found


async def start(client: Client, settings: Any, *, dynamic: bool, refresh: bool = False) -> Any:
    """Initialize the server, wait for its settings, and return its capabilities."""
    result = await client.initialize(
        capabilities=abilities(dynamic=dynamic, refresh=refresh), initializationOptions=settings
    )
    client.ignore("status/update")
    await settled(client)
    return result["capabilities"]


async def configured(client: Client, settings: Any) -> None:
    """Change the settings, and wait until they apply."""
    client.notify("workspace/didChangeConfiguration", {"settings": settings})
    await settled(client)


async def settled(client: Client) -> None:
    """Wait until the configuration is no longer being reloaded."""
    async with asyncio.timeout(60):
        await asyncio.sleep(0)  # Let the tasks that handle notifications start.
        while any(key[0] in ("settings", "registration") for key in client.server.scheduler._jobs):
            await asyncio.sleep(0.01)


def methods(params: Any) -> list[str]:
    """Return the methods in a registration or unregistration."""
    (entries,) = params.values()
    return [entry["method"] for entry in entries]


async def test_client_without_dynamic_registration_gets_all_providers(bare: Client) -> None:
    asked = Asked(bare)
    announced = await start(bare, OFF, dynamic=False)
    assert announced["inlayHintProvider"] == {"resolveProvider": False}
    assert announced["codeLensProvider"] == {"resolveProvider": False}
    assert announced["documentSymbolProvider"] == {"label": "Tokens"}
    assert asked == []


async def test_disabled_providers_are_not_announced(bare: Client) -> None:
    asked = Asked(bare)
    announced = await start(bare, OFF, dynamic=True, refresh=True)
    assert not announced.keys() & FIELDS
    assert announced["hoverProvider"] is True
    assert asked == []


async def test_providers_are_registered_and_unregistered_by_settings(bare: Client) -> None:
    asked = Asked(bare)
    await start(bare, ON, dynamic=True)
    assert [(method, methods(params)) for method, params in asked] == [
        (REGISTER, [HINT]),
        (REGISTER, [SYMBOL]),
    ]
    new = [registration for _, params in asked for registration in params["registrations"]]
    assert [each["registerOptions"] for each in new] == [
        {"documentSelector": None},
        {"documentSelector": None, "label": "Tokens"},
    ]
    await configured(bare, BOTH)
    assert [(method, methods(params)) for method, params in asked[2:]] == [(REGISTER, [LENS])]
    await configured(bare, OFF)
    ended = [params["unregisterations"] for _, params in asked[3:]]
    assert [[item["method"] for item in items] for items in ended] == [[HINT], [LENS], [SYMBOL]]
    assert {item["id"] for items in ended for item in items} > {each["id"] for each in new}
    assert len(asked) == 6


@pytest.mark.real_delays
@pytest.mark.parametrize("dynamic", [False, True])
async def test_enabled_providers_are_refreshed_after_a_change(bare: Client, dynamic: bool) -> None:
    """The server requests a refresh, because clients do not know which changes affect counts."""
    asked = Asked(bare)
    await start(bare, ON, dynamic=dynamic, refresh=True)
    asked.clear()
    await configured(bare, ON)
    assert asked.names() == ["workspace/inlayHint/refresh"]
    await bare.request("context/set", {"model": "gpt-4"})
    assert asked.names() == ["workspace/inlayHint/refresh"]
    await bare.request("context/set", {"model": "gpt-4"})
    assert asked.names() == []


async def test_disabled_hints_disappear(bare: Client) -> None:
    """A client without dynamic registration is asked to request the hints again."""
    asked = Asked(bare)
    await start(bare, ON, dynamic=False, refresh=True)
    asked.clear()
    await configured(bare, OFF)
    assert asked.names() == ["workspace/inlayHint/refresh"]


async def test_no_request_is_sent_before_initialized(bare: Client) -> None:
    asked = Asked(bare)
    params = {
        "processId": None,
        "rootUri": "file:///ws",
        "capabilities": abilities(dynamic=True, refresh=False),
        "initializationOptions": ON,
    }
    await bare.request("initialize", params)
    await bare.server.services.configured.wait()
    await asyncio.sleep(0.1)
    assert asked == []
    bare.notify("initialized", {})
    await settled(bare)
    assert [methods(each) for _, each in asked] == [[HINT], [SYMBOL]]


@pytest.mark.parametrize("dynamic", [False, True])
async def test_outline_is_empty_in_roots_that_disable_it(bare: Client, dynamic: bool) -> None:
    """Registrations apply to all roots. Without dynamic registration, the outline is always shown."""
    sections = {"file:///one": {"inlayHints": True}, "file:///two": {}}
    Asked(bare)
    bare.answer(
        "workspace/configuration",
        lambda params: [sections.get(item["scopeUri"], {}) for item in params["items"]],
    )
    able = abilities(dynamic=dynamic, refresh=False)
    able["workspace"]["configuration"] = True
    folders = [{"uri": uri, "name": uri[-3:]} for uri in sections]
    await bare.initialize(capabilities=able, workspaceFolders=folders, ignored=("status/update",))
    await settled(bare)
    found = []
    for root in sections:
        bare.open("# One\n\nwords\n", f"{root}/a.md")
        params = {"textDocument": {"uri": f"{root}/a.md"}}
        found.append([each["name"] for each in await bare.request(SYMBOL, params)])
    assert found == [["One"], [] if dynamic else ["One"]]


async def test_budgets_are_evaluated_again_for_another_model(bare: Client) -> None:
    text = "你好，世界。" * 20
    budget = {"files": "*.md", "maxTokens": 1}
    await bare.initialize(
        initializationOptions={"tokenSidecar": {"budget": [budget]}}, ignored=("status/update",)
    )
    bare.open(text)
    first = await bare.take("textDocument/publishDiagnostics")
    counts = (await bare.count(models=["gpt-5", "gpt-4"]))["models"]
    assert counts[0]["tokens"] != counts[1]["tokens"]
    await bare.request("context/set", {"model": "gpt-4"})
    second = await bare.take("textDocument/publishDiagnostics")
    tokens = [each["diagnostics"][0]["data"]["tokens"] for each in (first, second)]
    assert tokens == [count["tokens"] for count in counts]
    assert first["uri"] == second["uri"] == URI
