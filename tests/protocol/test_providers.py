"""Tests that enabled providers are registered, and refreshed when counts change."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from tests.protocol.client import URI, Client

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
    await bare.initialize(capabilities=able, workspaceFolders=folders)
    bare.ignore("status/update")
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
    await bare.initialize(initializationOptions={"tokenSidecar": {"budget": [budget]}})
    bare.ignore("status/update")
    bare.open(text)
    first = await bare.take("textDocument/publishDiagnostics")
    counts = (await bare.count(models=["gpt-5", "gpt-4"]))["models"]
    assert counts[0]["tokens"] != counts[1]["tokens"]
    await bare.request("context/set", {"model": "gpt-4"})
    second = await bare.take("textDocument/publishDiagnostics")
    tokens = [each["diagnostics"][0]["data"]["tokens"] for each in (first, second)]
    assert tokens == [count["tokens"] for count in counts]
    assert first["uri"] == second["uri"] == URI
