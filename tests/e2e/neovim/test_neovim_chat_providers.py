"""Tests that calls are recorded with the chat plugin's provider, at the provider's prices."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from tests.e2e.neovim.chat_conversation import EACH, ask, say, wait_calls
from tests.e2e.neovim.chat_plugins import CODECOMPANION, COPILOTCHAT, ChatPlugin
from tests.e2e.neovim.harness import SERVER, Editor, environment

pytestmark = pytest.mark.plugins

GROQS = "llama-3.3-70b-versatile"
"""A model name without a vendor. Only the plugin knows that Groq hosts this model."""
INPUT, OUTPUT = Decimal("0.59") / 10**6, Decimal("0.79") / 10**6
"""Groq's prices in USD per token."""


def served_by(plugin: ChatPlugin, name: str, model: str) -> ChatPlugin:
    """Configure the plugin with a provider that the user has named `name`."""
    lua = plugin.lua.replace("gpt-4o", model)
    lua = lua.replace("mine = adapter", f"{name} = adapter").replace("'mine'", f"'{name}'")
    lua = lua.replace("mine = mine", f"{name} = mine")
    lua = lua.replace("provider = 'openai'", f"provider = '{name}'")
    of_avantes = f"{name} = {{ __inherited_from = 'openai', api_key_name = 'OPENAI_API_KEY',"
    lua = lua.replace("openai = { endpoint", f"{of_avantes} endpoint")
    return msgspec.structs.replace(plugin, lua=lua)


def exported(editor: Editor) -> list[dict[str, Any]]:
    """Return all calls in the ledger, in the format of `cost export`."""
    env = environment(editor.folder)
    del env["TOKEN_SIDECAR_CONFIG"]  # the command fails if there is no ledger
    command = [str(SERVER), "cost", "export", "--format", "jsonl"]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in result.stdout.splitlines()]


@EACH
def test_calls_are_recorded_with_the_provider_that_the_plugin_names(
    begin: Callable[..., Any], plugin: ChatPlugin
) -> None:
    editor, server, session = begin(served_by(plugin, "groq", GROQS), waits=False)
    say(editor, plugin, server, 0)
    wait_calls(editor, 2)
    calls = exported(editor)
    assert [call["provider"] for call in calls] == ["groq"] * 2
    assert {call["model"] for call in calls} == {GROQS}
    assert {call["session"] for call in calls} == {session}
    assert {call["requestId"] for call in calls} == {"chatcmpl-1", "chatcmpl-2"}
    prompts = sum(request.prompt for request in server.received)
    outputs = sum(request.output for request in server.received)
    worked = INPUT * prompts + OUTPUT * outputs
    totals = ask(editor, "cost/detail")["totals"]
    assert abs(Decimal(str(totals["costUsd"])) - worked) < Decimal("1e-9")


@pytest.mark.parametrize("plugin", [CODECOMPANION, COPILOTCHAT], ids=lambda plugin: plugin.name)
def test_calls_through_copilot_are_billed_in_credits(
    begin: Callable[..., Any], plugin: ChatPlugin
) -> None:
    editor, server, _ = begin(served_by(plugin, "copilot", "gpt-4o"), waits=False)
    say(editor, plugin, server, 0)
    wait_calls(editor, 2)
    assert {call["provider"] for call in exported(editor)} == {"github-copilot"}
    (row,) = ask(editor, "cost/detail")["rows"]
    assert row["unpriced"]
    assert not row.get("costUsd")


NAMES = [
    ("azure_openai", "https://x.openai.azure.com/openai", "azure"),
    ("claude", "https://api.anthropic.com/v1/messages", "anthropic"),
    ("claude", "https://api.moonshot.ai/anthropic/v1/messages", None),
    ("openai", "https://api.openai.com/v1/chat/completions", "openai"),
    ("openai", "http://127.0.0.1:8080/v1/chat/completions", None),
    ("Ollama", "http://127.0.0.1:11434/api/chat", "ollama"),
    ("xai", "https://api.x.ai/v1", "x-ai"),
    ("mine", "https://api.openai.com/v1", None),
]


@pytest.mark.parametrize(("name", "url", "expected"), NAMES)
def test_an_api_format_is_not_taken_for_a_provider(
    shared: Editor, name: str, url: str, expected: str | None
) -> None:
    """Users often name a server after the API that it implements, such as `openai`."""
    found = "return require('token_sidecar.integrations.providers').id(...)"
    assert shared.lua(found, name, url) == expected
