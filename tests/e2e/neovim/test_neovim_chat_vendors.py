"""Tests the real codecompanion with its adapters for Anthropic, OpenAI's Responses API and
Gemini.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.e2e.neovim.chat_conversation import WEATHER, ask, tokens, wait_tokens
from tests.e2e.neovim.chat_plugins import CODECOMPANION, PATIENT
from tests.e2e.neovim.harness import Editor, wait_for
from tests.fake_vendor import FakeVendor, Reply, Script, ToolUse

pytestmark = pytest.mark.plugins


class Vendor(msgspec.Struct, frozen=True):
    """The fake vendor for one of the plugin's adapters."""

    adapter: str
    path: str
    model: str
    keeps_reasoning: bool = True
    """Whether the next request includes the reasoning from a reply."""


ANTHROPIC = Vendor("anthropic", "/v1/messages", "claude-sonnet-4-5")
RESPONSES = Vendor("openai_responses", "/v1/responses", "gpt-4o")
GEMINI = Vendor("gemini", "/v1beta/models/${model}${stream}key=${api_key}", "gemini-2.5-pro", False)
ASK_WEATHER = Reply("", (ToolUse("weather", {"city": "Lisbon"}),), prompt_tokens=4_000)
TELL_WEATHER = Reply("It is 21 degrees and sunny there.", prompt_tokens=4_100)
EACH = pytest.mark.parametrize(
    "vendor", [ANTHROPIC, RESPONSES, GEMINI], ids=lambda vendor: vendor.adapter
)


@pytest.fixture
def begin(open_editor: Callable[..., Editor]) -> Iterator[Callable[[Vendor], Any]]:
    """Return a function that opens a Neovim chat with a server that implements the vendor's API."""
    with ExitStack() as stack:

        def opened(vendor: Vendor) -> tuple[Editor, FakeVendor, str]:
            server = stack.enter_context(FakeVendor(Script()))
            lua = CODECOMPANION.lua.replace("'openai_compatible'", f"'{vendor.adapter}'")
            lua = lua.replace("env = { url = url, api_key = 'x' }", f"url = url .. '{vendor.path}'")
            lua = lua.replace("gpt-4o", vendor.model)
            for name in ("ANTHROPIC", "OPENAI", "GEMINI"):
                lua += f"\nvim.env.{name}_API_KEY = 'x'"
            editor = open_editor(lua + PATIENT)
            editor.command(f"cd {editor.workspace}")
            editor.edit("a.md", "Hello, world!\n")
            editor.wait_tokens(4)  # requests may be sent only after this
            editor.lua("setup(...)", server.url)
            editor.lua(CODECOMPANION.open)
            return editor, server, str(editor.lua(CODECOMPANION.session))

        yield opened


def say(editor: Editor, server: FakeVendor, vendor: Vendor, part: int) -> int:
    """Send a prompt that causes a tool call.

    Returns the number of tokens that the next request will repeat, according to the vendor.
    """
    server.script.on(WEATHER.format(part), ASK_WEATHER, TELL_WEATHER)
    editor.lua(CODECOMPANION.submit, WEATHER.format(part))
    wait_for(
        lambda: len(server.billed()) == 2 * part + 2, lambda: f"both calls; {editor.describe()}"
    )
    wait_for(lambda: editor.lua(CODECOMPANION.idle), "the end of the reply")
    usage = server.billed()[-1].usage
    assert usage is not None
    return usage.context - (0 if vendor.keeps_reasoning else usage.reasoning)


@EACH
def test_counts_equal_the_vendors_reported_usage(
    begin: Callable[[Vendor], Any], vendor: Vendor
) -> None:
    editor, server, session = begin(vendor)
    editor.lua("""
      _G.settings = 0
      local client = require('token_sidecar.server').clients()[1]
      local request = client.request
      client.request = function(self, method, ...)
        _G.settings = _G.settings + (method == 'context/set' and 1 or 0)
        return request(self, method, ...)
      end""")
    for part in range(3):
        right = say(editor, server, vendor, part)
        wait_tokens(editor, session, right.__eq__, str(right))

    def usage() -> Any:
        return ask(editor, "context/usage", {"session": session})

    wait_for(lambda: usage()["turns"] == 12, "the last reply")
    wait_for(lambda: usage()["tokens"] == right, lambda: f"{right} tokens, not {usage()}")
    assert usage()["model"] == vendor.model

    def rows() -> Any:
        return ask(editor, "cost/detail", {"workspace": None, "by": ["model"]})["rows"]

    wait_for(lambda: [row["calls"] for row in rows()] == [6], lambda: f"6 calls, not {rows()}")
    (row,) = rows()
    assert row["model"] == vendor.model
    usages = [call.usage for call in server.billed() if call.usage]
    assert row["promptTokens"] == sum(usage.prompt for usage in usages)
    assert row["cacheReadTokens"] == sum(usage.cache_read for usage in usages)
    assert row["completionTokens"] == sum(usage.output for usage in usages)
    assert not row["unpriced"]
    assert editor.lua("return _G.settings") <= 2, "the tools are sent with the first prompt"
    assert editor.messages() == []


@pytest.mark.parametrize("vendor", [ANTHROPIC, RESPONSES], ids=lambda vendor: vendor.adapter)
def test_a_pdf_is_counted_as_a_document_and_not_as_base64(
    begin: Callable[[Vendor], Any], vendor: Vendor, tmp_path: Path
) -> None:
    """If its base64 data were counted as text, the PDF would have about 100,000 tokens."""
    editor, server, session = begin(vendor)
    pdf = tmp_path / "paper.pdf"
    pdf.write_bytes(b"%PDF-1.4\n" + random.Random(5).randbytes(150_000))
    before = wait_for(lambda: tokens(editor, session), "the chat")
    editor.lua(
        """
        local file = require('codecompanion.interactions.shared.slash_commands.file')
        file.output_doc({ Chat = chat }, { path = ... },
          { filetype = 'pdf', mimetype = 'application/pdf', silent = true })""",
        str(pdf),
    )
    right = say(editor, server, vendor, 0)
    sent = json.dumps(server.calls[0].request.body)
    assert base64.b64encode(pdf.read_bytes()).decode() in sent, "the plugin sent the PDF"
    wait_tokens(editor, session, right.__eq__, str(right))
    largest = ask(editor, "context/usage", {"session": session})["largest"]
    assert max(part["tokens"] for part in largest) < before + 20_000
