"""Tests section counts in hovers, hints, code lenses, symbols and commands."""

from __future__ import annotations

import re
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
    await bare.initialize(initializationOptions={"tokenSidecar": {"inlayHints": True}})
    bare.ignore("status/update")


async def test_hints_are_off_by_default(client: Client) -> None:
    client.ignore("status/update")
    client.open(PLAN)
    assert await hints(client) == []


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


async def test_document_hover_is_on_the_first_line_only(client: Client) -> None:
    client.ignore("status/update")
    client.open(PLAN)
    where: dict[str, Any] = {"textDocument": {"uri": URI}, "position": {"line": 0, "character": 2}}
    result = await client.request("textDocument/hover", where)
    assert f"{truth(PLAN):,} tokens" in result["contents"]["value"]
    assert "gpt-5 (o200k_base)" in result["contents"]["value"]
    where["position"]["line"] = 3
    assert await client.request("textDocument/hover", where) is None


@pytest.mark.parametrize("formats", [["plaintext"], ["html", "plaintext", "markdown"]])
async def test_hover_is_plain_text_for_clients_that_prefer_it(
    bare: Client, formats: list[str]
) -> None:
    able = {"textDocument": {"hover": {"contentFormat": formats}}}
    await bare.initialize(capabilities=able)
    bare.ignore("status/update")
    bare.open("# Title_of *it*\n\nText.\n")
    where = {"textDocument": {"uri": URI}, "position": {"line": 0, "character": 0}}
    contents = (await bare.request("textDocument/hover", where))["contents"]
    assert contents["kind"] == "plaintext"
    document, title, table = contents["value"].split("\n\n")
    assert document.startswith("Document  8 tokens, exact, counted with")
    assert title == "Title_of it"
    assert "|" not in table
    assert re.search(r"^gpt-5 +8 +0 % +\S+ +exact$", table, re.MULTILINE)


async def test_hover_on_a_heading_compares_models(client: Client) -> None:
    client.ignore("status/update")
    client.open(PLAN)
    where = {"textDocument": {"uri": URI}, "position": {"line": 4, "character": 0}}
    result = await client.request("textDocument/hover", where)
    steps = PLAN[PLAN.index("## Steps") : PLAN.index("## Later")]
    assert f"| gpt-5 | {truth(steps)} |" in result["contents"]["value"]
    assert f"| gpt-4 | {truth(steps, 'cl100k_base')} |" in result["contents"]["value"]
    assert "| claude-sonnet-4-5 | ~" in result["contents"]["value"]


async def test_symbols_are_a_tree_of_sections_with_tokens(client: Client) -> None:
    client.ignore("status/update")
    client.open(PLAN)
    (plan,) = await client.request("textDocument/documentSymbol", {"textDocument": {"uri": URI}})
    assert (plan["name"], plan["detail"]) == ("Plan", f"{truth(PLAN)} tokens")
    assert [child["name"] for child in plan["children"]] == ["Steps", "Later"]


async def test_lenses_are_shown_only_if_enabled(bare: Client) -> None:
    await bare.initialize(initializationOptions={"tokenSidecar": {"codeLens": True}})
    bare.ignore("status/update")
    bare.open(PLAN)
    lenses = await bare.request("textDocument/codeLens", {"textDocument": {"uri": URI}})
    assert [lens["range"]["start"]["line"] for lens in lenses] == [0, 4, 8]
    assert lenses[0]["command"]["title"] == f"{truth(PLAN)} tokens"


async def test_command_lists_the_heaviest_sections(client: Client) -> None:
    client.ignore("status/update")
    client.open(PLAN)
    result = await client.request(
        "workspace/executeCommand",
        {"command": "tokenSidecar.server.heaviestSections", "arguments": [URI]},
    )
    assert result[0]["title"] == "Plan"
    told = await client.take("window/showMessage")
    assert "Steps (line 5)" in told["message"]
