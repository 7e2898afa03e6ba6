"""Tests that names from repositories, documents and clients are displayed as plain text."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from sidecar.server.run import set_up_logging
from tests.protocol.client import URI, Client, RpcError
from tests.unit.test_text_printable import is_plain

IMAGE = "![p](https://host.example/x.png)"
NAMES = [
    IMAGE,
    "[run](command:workbench.action.terminal.new)",
    "<img src='https://host.example/x.png'> https://host.example www.host.example",
    "a | b\n\n# c\x1b[2J\u202e\u2028::add-mask::x",
    "$(zap)",
]


def text_of(markdown: str) -> str:
    """Return the visible text of Markdown. Fail if the Markdown contains anything except text."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    html = str(parser.render(markdown))
    tags = set(re.findall(r"</?(\w+)", html))
    assert tags <= {"table", "thead", "tbody", "tr", "th", "td", "p", "strong", "hr"}, html
    assert not re.search(r"(https?|ftp)://|www\.", markdown), "contains a bare link"
    assert not re.search(r"(?<!\\)\$\(", markdown), "contains a VS Code icon"
    assert is_plain(markdown, "\n")
    return html


@pytest.mark.parametrize("name", NAMES)
async def test_hostile_model_name_is_shown_as_plain_text(bare: Client, name: str) -> None:
    await bare.initialize(initializationOptions={"tokenSidecar": {"model": name}})
    bare.open(f"# Plan {name.splitlines()[0]}\n\nWhat to do.\n")
    update = await bare.take("status/update")
    assert is_plain(update["text"])
    found = [update["document"]["tooltip"]]

    where = {"textDocument": {"uri": URI}, "position": {"line": 0, "character": 2}}
    result = await bare.request("textDocument/hover", where)
    assert result["contents"]["kind"] == "markdown"
    found.append(result["contents"]["value"])

    command = {"command": "tokenSidecar.server.compareModels", "arguments": [URI, name]}
    found.append(await bare.request("workspace/executeCommand", command))
    message = (await bare.take("window/showMessage"))["message"]
    assert is_plain(message, "\n")
    assert not re.search(r"\]\((https?|command|file):", message), "VS Code would display a link"

    await bare.request("context/append", {"turns": [{"role": "user", "content": "hi"}]})
    update = await bare.take("status/update", lambda params: params["context"] is not None)
    found.append(update["context"]["tooltip"])
    bare.ignore("status/update", "context/warning")
    for markdown in found:
        assert "host.example" in text_of(markdown) or "host" not in name


async def test_hostile_section_title_is_shown_as_plain_text(bare: Client) -> None:
    options = {"tokenSidecar": {"inlayHints": True, "codeLens": True}}
    await bare.initialize(initializationOptions=options, ignored=("status/update",))
    title = "[x](command:y) ::error::\x1b[31m\u202e ##[add-mask]z"
    bare.open(f"# {title}\n\nWhat to do.\n")
    document = {"textDocument": {"uri": URI}}
    [symbol] = await bare.request("textDocument/documentSymbol", document)
    assert is_plain(symbol["name"])
    span = {"start": {"line": 0, "character": 0}, "end": {"line": 9, "character": 0}}
    [hint] = await bare.request("textDocument/inlayHint", {**document, "range": span})
    assert is_plain(hint["tooltip"], "\n")
    command = {"command": "tokenSidecar.server.heaviestSections", "arguments": [URI]}
    await bare.request("workspace/executeCommand", command)
    message = (await bare.take("window/showMessage"))["message"]
    assert is_plain(message, "\n")
    assert "](command" not in message
    assert "##[" not in message


async def test_errors_and_problems_contain_no_control_characters(
    bare: Client, tmp_path: Path
) -> None:
    (tmp_path / ".token-sidecar.toml").write_text(
        '"k\\u001b[2J\\u202e" = 1\n[[budget]]\nfiles = "*.md"\nmax-tokens = 1\n'
        'sections = { "a\\u001b[31m" = "x" }\n',
        "utf-8",
    )
    await bare.initialize(root=tmp_path.as_uri(), ignored=("status/update",))
    name = "a\u202e%1B.md"
    bare.open("# Plan\n\nWhat to do, and more of it.\n", f"{tmp_path.as_uri()}/{name}")
    seen: list[str] = []
    for _ in range(2):
        published = await bare.take(
            "textDocument/publishDiagnostics", lambda params: bool(params["diagnostics"])
        )
        seen += [diagnostic["message"] for diagnostic in published["diagnostics"]]
    bare.ignore("textDocument/publishDiagnostics")
    assert any("k\\x1b" in text or "key" in text for text in seen)
    for text in seen:
        assert is_plain(text), text
    uri = "file:///no\x1b[2J\u202e[x](command:y)"
    with pytest.raises(RpcError) as refused:
        await bare.request("tokens/count", {"textDocument": {"uri": uri}})
    assert is_plain(str(refused.value))
    assert "](command" not in str(refused.value)


def test_log_contains_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("WARNING")
    names: Any = "\x1b]0;owned\x07\u202e\n::add-mask::x ##[error]y"
    logging.getLogger("sidecar.test").warning("a model named %s", names)
    written = capsys.readouterr().err
    assert is_plain(written, "\n")
    assert not any(line.lstrip().startswith("::") for line in written.split("\n"))
    assert "##[" not in written


@pytest.mark.parametrize("name", ["session", "requestId", "model", "category", "provider"])
async def test_lone_surrogate_in_a_name_is_bad_params(client: Client, name: str) -> None:
    """SQLite cannot store lone surrogates. The client gets an error, and nothing is logged."""
    params = {"model": "m", "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    with pytest.raises(RpcError, match=f"{name} contains a lone surrogate") as caught:
        await client.request("cost/record", {**params, name: "a\ud800"})
    assert caught.value.data == {"kind": "badParams", "retryable": False}


async def test_lone_surrogate_in_a_cost_request_is_bad_params(client: Client) -> None:
    with pytest.raises(RpcError, match="session contains a lone surrogate") as caught:
        await client.request("cost/detail", {"session": "a\ud800"})
    assert caught.value.data == {"kind": "badParams", "retryable": False}
