"""Tests that each request gets a response in every state of the server."""

from __future__ import annotations

import json
import logging
import random

import pytest

from sidecar.server.stdio import InvalidFrame
from tests.protocol.client import URI, Client, RpcError

POSITION = {"line": 0, "character": 0}
RANGE = {"start": POSITION, "end": POSITION}


async def test_requests_before_initialize_and_after_shutdown_are_refused(bare: Client) -> None:
    with pytest.raises(RpcError) as early:
        await bare.count()
    assert early.value.code == -32002
    await bare.initialize()
    with pytest.raises(RpcError) as twice:
        await bare.request("initialize", {"capabilities": {}, "processId": None, "rootUri": None})
    assert twice.value.code == -32600
    await bare.request("shutdown")
    with pytest.raises(RpcError) as late:
        await bare.count()
    assert late.value.code == -32600
    bare.notify("exit")
    assert await bare.exit == 0


async def test_client_of_a_later_protocol_can_initialize(bare: Client) -> None:
    tags = {"tagSupport": {"valueSet": [1, -1, -2]}}
    hover = {"contentFormat": ["html", "plaintext"]}
    capabilities = {"textDocument": {"publishDiagnostics": tags, "hover": hover}}
    params = {"processId": None, "rootUri": None, "trace": "compact", "capabilities": capabilities}
    result = await bare.request("initialize", params)
    assert result["capabilities"]["hoverProvider"] is True


async def test_exit_without_shutdown_is_an_error(client: Client) -> None:
    client.notify("exit")
    assert await client.exit == 1


async def test_initialize_announces_the_custom_methods(bare: Client) -> None:
    result = await bare.initialize(encodings=["utf-8", "utf-16"])
    ours = result["capabilities"]["experimental"]["tokenSidecar"]
    assert ours["protocolVersion"] == 1
    assert "tokens/count" in ours["requests"]
    assert "status/update" in ours["notifications"]
    assert result["capabilities"]["positionEncoding"] == "utf-8"
    assert result["capabilities"]["textDocumentSync"]["openClose"] is True
    assert result["capabilities"]["textDocumentSync"]["change"] == 2


@pytest.mark.parametrize(
    ("params", "code", "kind"),
    [
        (None, -32602, "badParams"),
        ([], -32602, "badParams"),
        ("text", -32602, "badParams"),
        ({}, -32602, "badParams"),
        ({"text": 5}, -32602, "badParams"),
        ({"text": "a", "model": 5}, -32602, "badParams"),
        ({"messages": [], "textDocument": {"uri": URI}}, -32602, "badParams"),
        ({"text": "a", "textDocument": {"uri": URI}, "range": RANGE}, -32602, "badParams"),
        ({"text": "a", "range": None, "ranges": [{"start": 1}]}, -32602, "badParams"),
        ({"textDocument": {"uri": "file:///none"}}, -32602, "unknownDocument"),
        ({"textDocument": {"uri": ""}}, -32602, "unknownDocument"),
    ],
)
async def test_bad_params_are_answered(
    client: Client, params: object, code: int, kind: str
) -> None:
    with pytest.raises(RpcError) as caught:
        await client.request("tokens/count", params)
    assert caught.value.code == code
    assert caught.value.data == {"kind": kind, "retryable": False}


async def test_a_request_without_params_is_answered(client: Client) -> None:
    answer = await client.raw({"jsonrpc": "2.0", "id": "no-params", "method": "tokens/count"})
    assert answer["error"]["code"] == -32602


async def test_malformed_lsp_request_is_answered(client: Client) -> None:
    with pytest.raises(RpcError) as caught:
        await client.request("textDocument/hover", {"position": "here"})
    assert caught.value.code == -32602


async def test_an_unknown_method_is_answered(client: Client) -> None:
    with pytest.raises(RpcError) as caught:
        await client.request("tokens/nothing", {})
    assert caught.value.code == -32601


async def test_nested_jsonrpc_key_has_no_meaning(client: Client) -> None:
    log = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"jsonrpc": "2.0"}}
    with_log = await client.request("tokens/count", {"text": json.dumps(log), "extra": log})
    assert with_log["tokens"] > 10


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"jsonrpc":"2.0","id":{},"method":"tokens/count"}',
        b'{"jsonrpc":"2.0","id":1,"method":5}',
    ],
)
async def test_garbage_is_answered_with_an_error(client: Client, body: bytes) -> None:
    client.send_bytes(body)
    assert client.orphans[-1]["error"]["code"] in (-32700, -32600)
    assert (await client.request("tokens/count", {"text": "hello world"}))["tokens"] == 2


async def test_thousand_garbage_messages_are_answered(client: Client) -> None:
    client.ignore("status/update")
    chance = random.Random(5)
    for _ in range(1_000):
        client.send_bytes(_garbage(chance))
    assert (await client.request("tokens/count", {"text": "hello world"}))["tokens"] == 2


def _garbage(chance: random.Random) -> bytes:
    values: list[object] = [None, 3, "x", [], {}, {"jsonrpc": "2.0"}, -1.5, True, "\ud800"]
    methods = ["tokens/count", "textDocument/didOpen", "textDocument/didChange", "$/x", 7, None]
    message = {
        "jsonrpc": chance.choice(["2.0", None, 2]),
        "id": chance.choice(values),
        "method": chance.choice(methods),
        "params": chance.choice([*values, {"textDocument": chance.choice(values)}]),
    }
    for key in list(message):
        if chance.random() < 0.2:
            del message[key]
    body = json.dumps(message).encode()
    if chance.random() < 0.3:
        return body[: chance.randrange(len(body))]
    return body


async def test_bad_frames_are_reported(client: Client) -> None:
    client.server.protocol.receive(InvalidFrame("skipped bytes that are not a header"))
    assert client.orphans[-1]["error"]["code"] == -32700


async def test_a_cancelled_request_is_answered(client: Client) -> None:
    client.ignore("status/update")
    big = "".join(f"line {n} of a long document\n" for n in range(200_000))
    client.send({"jsonrpc": "2.0", "id": 900, "method": "tokens/count", "params": {"text": big}})
    answer = client.answers.setdefault(900, client.exit.get_loop().create_future())
    client.notify("$/cancelRequest", {"id": 900})
    assert (await answer)["error"]["code"] == -32800


async def test_no_text_reaches_the_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client.ignore("status/update")
    client.open("SECRET text")
    client.change({"range": "SECRET", "text": "SECRET"})
    with pytest.raises(RpcError):
        await client.request("tokens/count", {"text": ["SECRET"]})
    await client.request("tokens/count", {"text": "SECRET"})
    assert "SECRET" not in caplog.text
