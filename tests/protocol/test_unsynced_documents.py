"""Tests documents that are out of sync after a change that the server cannot apply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.client import URI, Client, RpcError, edit
from tests.truth import truth

OTHER = "file:///ws/other.md"
IDENTIFIER = {"uri": URI, "version": 2}
GOOD = edit((0, 0), (0, 0), "more ")

UNREADABLE = [
    {"textDocument": IDENTIFIER, "contentChanges": [GOOD, edit((0, -1), (0, 0), "x")]},
    {"textDocument": IDENTIFIER, "contentChanges": [edit((0, 0), (2**40, 0), "x")]},
    {"textDocument": IDENTIFIER, "contentChanges": [{"range": "here", "text": "x"}]},
    {"textDocument": IDENTIFIER, "contentChanges": [{"range": None, "text": "x"}]},
    {"textDocument": IDENTIFIER, "contentChanges": [{"text": 5}]},
    {"textDocument": {"uri": URI, "version": 2**31}, "contentChanges": [GOOD]},
    {"textDocument": {"uri": URI, "version": 2.5}, "contentChanges": [GOOD]},
    {"textDocument": IDENTIFIER, "contentChanges": "all"},
    {"textDocument": {"uri": URI}, "contentChanges": [GOOD]},
]


def text_of(update: Any) -> Any:
    return update["text"].partition(" ")[0]


async def opened(client: Client) -> None:
    """Open two documents, and wait for their statuses."""
    for uri in (URI, OTHER):
        client.open("hello world\n", uri)
        assert (await client.take("status/update"))["uri"] == uri


@pytest.mark.parametrize("params", UNREADABLE)
async def test_malformed_change_makes_the_document_unsynced(client: Client, params: object) -> None:
    await opened(client)
    client.notify("textDocument/didChange", params)
    update = await client.take("status/update")
    assert (update["uri"], update["text"], update["document"]) == (URI, "?", None)
    with pytest.raises(RpcError) as caught:
        await client.count()
    assert caught.value.data == {"kind": "unknownDocument", "retryable": False}
    assert (await client.count(OTHER))["tokens"] == 3


async def test_integer_may_be_written_as_a_float(talker: Client) -> None:
    talker.open("hello world\n")
    place = {"line": 0.0, "character": 5.0}
    change = {
        "range": {"start": place, "end": place, "more": 1},
        "rangeLength": 0.0,
        "text": " new",
    }
    identifier = {"uri": URI, "version": 2.0}
    talker.notify(
        "textDocument/didChange", {"textDocument": identifier, "contentChanges": [change]}
    )
    count = await talker.count()
    assert (count["tokens"], count["version"]) == (truth("hello new world\n"), 2)


async def test_only_the_whole_text_synchronizes_the_document_again(
    client: Client,
) -> None:
    await opened(client)
    client.notify("textDocument/didChange", UNREADABLE[0])
    client.change(GOOD)
    assert text_of(await client.take("status/update")) == "?"
    client.change(GOOD, {"text": "the whole text\n"}, GOOD)
    update = await client.take("status/update")
    assert update["document"]["tokens"] == truth("more the whole text\n")
    assert (await client.count())["tokens"] == truth("more the whole text\n")


async def test_reopening_synchronizes_the_document_again(client: Client) -> None:
    await opened(client)
    client.notify("textDocument/didChange", UNREADABLE[0])
    assert text_of(await client.take("status/update")) == "?"
    client.open("opened again\n")
    assert (await client.take("status/update"))["document"]["tokens"] == truth("opened again\n")


async def test_unreadable_change_makes_all_documents_unsynced(client: Client) -> None:
    await opened(client)
    body = json.dumps({"jsonrpc": "2.0", "method": "textDocument/didChange", "params": {}})
    client.send_bytes(body.replace("{}", '{"textDocument": NaN}').encode())
    updates = [await client.take("status/update") for _ in range(2)]
    assert {(update["uri"], update["text"]) for update in updates} == {(URI, "?"), (OTHER, "?")}
    client.orphans.clear()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
async def test_bytes_that_are_not_utf_8_are_counted(
    bare: Client, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neovim sends such bytes as they are. Each is one code unit of a position."""

    def send(message: object) -> None:
        text = json.dumps(message, ensure_ascii=False)
        bare.send_bytes(text.encode("utf-8", "surrogateescape"))

    monkeypatch.setattr(bare, "send", send)
    await bare.initialize(encodings=[encoding], ignored=("status/update",))
    bare.open("caf\udce9 na\udcefve \udcff\udcfe\n")
    shown = "caf\ufffd na\ufffdve \ufffd\ufffd\n"
    assert (await bare.count())["tokens"] == truth(shown)
    assert (await bare.request("tokens/count", {"text": "caf\udce9"}))["tokens"] == truth(
        "caf\ufffd"
    )
    bare.change(edit((0, 3), (0, 4), "e"), edit((0, 9), (0, 10), " and \udce9"))
    assert (await bare.count())["tokens"] == truth("cafe na\ufffdve and \ufffd\ufffd\ufffd\n")
    with pytest.raises(RpcError, match="the text is not UTF-8; reload it with its own encoding"):
        await bare.request("tokens/fit", {"textDocument": {"uri": URI}, "maxTokens": 1})


async def test_defect_during_an_edit_makes_the_document_unsynced(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened(client)

    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(client.server.services.documents, "edit", broken)
    client.change(GOOD)
    assert text_of(await client.take("status/update")) == "?"


async def test_unsynced_document_has_no_diagnostics_or_fixes(bare: Client, tmp_path: Path) -> None:
    (tmp_path / ".token-sidecar.toml").write_text('[[budget]]\nfiles = "*.md"\nmax-tokens = 2\n')
    await bare.initialize(root=tmp_path.as_uri(), ignored=("status/update",))
    uri = (tmp_path / "a.md").as_uri()
    bare.open("many more tokens than two\n", uri)
    found = await bare.take("textDocument/publishDiagnostics")
    assert found["diagnostics"]
    bare.notify(
        "textDocument/didChange", {"textDocument": {"uri": uri, "version": 2}, "contentChanges": 1}
    )
    assert (await bare.take("textDocument/publishDiagnostics"))["diagnostics"] == []
    params = {
        "textDocument": {"uri": uri},
        "range": edit((0, 0), (0, 0), "")["range"],
        "context": {"diagnostics": []},
    }
    with pytest.raises(RpcError):
        await bare.request("textDocument/codeAction", params)
