"""Tests that each request gets exactly one response, in every state and whatever else is sent."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from lsprotocol import types

from sidecar.errors import RequestError
from sidecar.server.stdio import MAX_DEPTH, InvalidFrame
from tests.protocol.client import URI, Client, Message, RpcError

BIG = "".join(f"line {n} of a long document\n" for n in range(50_000))


def request(number: object, method: str = "tokens/count", **params: Any) -> Message:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def promise(client: Client, number: int | str) -> asyncio.Future[Message]:
    future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    client.answers[number] = future
    return future


async def still_counts(client: Client) -> None:
    assert (await client.request("tokens/count", {"text": "hello world"}))["tokens"] == 2


@pytest.mark.parametrize("answer", [{"result": None}, {"error": {"code": 1, "message": "no"}}, {}])
async def test_response_does_not_affect_a_request_with_the_same_id(
    client: Client, answer: Message
) -> None:
    working, after = promise(client, 900), promise(client, 901)
    client.send(request(900, text=BIG))
    client.send({"jsonrpc": "2.0", "id": 900, **answer})
    client.send(request(901, text="hello world"))
    assert (await after)["result"]["tokens"] == 2
    if answer:
        assert (await working)["result"]["tokens"] > 50_000
        assert client.orphans == []


async def test_duplicate_id_of_a_running_request_is_refused(client: Client) -> None:
    client.send(request(900, text=BIG))
    client.send(request(900, text="hello world"))
    assert client.orphans[-1]["error"]["code"] == -32600
    working = promise(client, 900)
    assert (await working)["result"]["tokens"] > 50_000
    again = promise(client, 900)
    client.send(request(900, text="hello world"))
    assert (await again)["result"]["tokens"] == 2


async def test_cancelled_request_keeps_its_id_until_answered(client: Client) -> None:
    client.send(request("same", text=BIG))
    client.notify("$/cancelRequest", {"id": "same"})
    client.send(request("same", text="hello world"))
    assert client.orphans[-1]["error"]["code"] == -32600
    assert (await promise(client, "same"))["error"]["code"] == -32800


async def test_client_and_server_may_use_the_same_ids(client: Client) -> None:
    """A client's requests may have the same ids as the server's own requests."""
    params = types.ShowMessageRequestParams(types.MessageType.Info, "What to do?")
    asked = client.server.protocol.send_request_async(
        "window/showMessageRequest", params, msg_id="7"
    )
    await client.take("window/showMessageRequest")
    answer = await client.raw(request("7", text="hello world"))
    assert answer["result"]["tokens"] == 2
    assert not asked.done()
    client.notify("$/cancelRequest", {"id": "7"})
    client.send({"jsonrpc": "2.0", "id": "7", "result": {"title": "Go on"}})
    assert (await asked).title == "Go on"


@pytest.mark.parametrize("depth", [201, 967, 5_000, 200_000])
@pytest.mark.parametrize("pair", ["[]", "{}"])
async def test_deeply_nested_request_is_refused_with_its_id(
    client: Client, depth: int, pair: str
) -> None:
    opening = "[" if pair == "[]" else '{"a":'
    deep = opening * depth + "1" + pair[1] * depth
    answer = promise(client, 900)
    head = '{"params":{"turns":[{"role":"user","content":'
    body = head + deep + '}]},"jsonrpc":"2.0","method":"context/append","id":900}'
    client.send_bytes(body.encode())
    assert (await answer)["error"]["code"] == -32700
    await still_counts(client)


async def test_content_of_the_maximum_depth_is_fitted(talker: Client) -> None:
    content: Any = "deep"
    for _ in range((MAX_DEPTH - 6) // 2):
        content = [{"type": "tool_result", "content": content}]
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": "yes"}]
    assert (await talker.request("context/append", {"turns": turns}))["tokens"] > 0
    assert (await talker.request("context/fit", {"maxTokens": 1}))["messages"] is not None


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 5_000, "[1,}"]
)
async def test_infinite_and_nan_numbers_are_refused(client: Client, number: str) -> None:
    answer = promise(client, 900)
    params = f'{{"text":"a","range":{number}}}'
    body = f'{{"jsonrpc":"2.0","id":900,"method":"tokens/count","params":{params}}}'
    client.send_bytes(body.encode())
    assert (await answer)["error"]["code"] == -32700
    await still_counts(client)


def _nested() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"tokens": float("nan")},
        lambda: [float("inf")],
        _nested,
        lambda: {1: {2}, 3: object()},
    ],
)
async def test_unencodable_result_is_answered_with_an_error(
    client: Client, make: Callable[[], object]
) -> None:
    client.server.protocol.fm.features["tokens/fit"] = lambda _: make()
    answer = await client.raw(request(900, "tokens/fit", text="a", maxTokens=1))
    assert answer["error"]["code"] == -32803
    assert answer["error"]["data"]["kind"] == "internal"
    await still_counts(client)


async def test_exit_requires_the_form_of_a_notification(client: Client) -> None:
    client.send({"method": "exit"})
    client.send({"jsonrpc": "1.0", "method": "exit"})
    assert [orphan["error"]["code"] for orphan in client.orphans] == [-32600, -32600]
    answer = await client.raw(request(900, "exit"))
    assert answer["error"]["code"] == -32601
    assert not client.exit.done()
    client.notify("exit")
    assert await client.exit == 1
    client.send(request(901, text="a"))
    assert len(client.orphans) == 2, "messages after `exit` get no response"


async def test_request_without_jsonrpc_is_refused_with_its_id(client: Client) -> None:
    answer = await client.raw({"id": 900, "method": "tokens/count", "params": {"text": "a"}})
    assert answer["error"]["code"] == -32600


async def test_requests_and_notifications_are_not_interchangeable(client: Client) -> None:
    client.notify("shutdown")
    await still_counts(client)
    item = {"uri": "file:///ws/a.md", "languageId": "", "version": 1, "text": "a"}
    with pytest.raises(RpcError) as caught:
        await client.request("textDocument/didOpen", {"textDocument": item})
    assert caught.value.code == -32601
    assert client.server.services.documents == {}


class _Panic(BaseException):
    """An exception that, like pyo3's PanicException, is not a subclass of Exception."""


async def test_failing_frame_does_not_affect_later_frames(client: Client) -> None:
    def panic(_: object) -> None:
        raise _Panic

    client.server.protocol.fm.features["textDocument/didSave"] = panic
    client.server.protocol.fm.features["tokens/fit"] = panic
    client.notify("textDocument/didSave", {"textDocument": {"uri": "file:///ws/a.md"}})
    answer = await client.raw(request(900, "tokens/fit", text="a", maxTokens=1))
    assert answer["error"]["data"]["kind"] == "internal"
    await still_counts(client)


@pytest.mark.parametrize(
    "method", ["NaN", "[" * 300 + "]" * 300, '{"a":' * 2_000 + "1" + "}" * 2_000]
)
async def test_unreadable_method_is_refused_with_its_id(client: Client, method: str) -> None:
    answer = promise(client, 900)
    client.send_bytes(f'{{"id":900,"method":{method},"jsonrpc":"2.0"}}'.encode())
    assert (await answer)["error"]["code"] == -32700
    await still_counts(client)


async def test_deeply_nested_response_fails_the_servers_request(client: Client) -> None:
    params = types.ShowMessageRequestParams(types.MessageType.Info, "What to do?")
    asked = client.server.protocol.send_request_async(
        "window/showMessageRequest", params, msg_id="7"
    )
    await client.take("window/showMessageRequest")
    deep = "[" * 3_000 + "]" * 3_000
    client.send_bytes(f'{{"jsonrpc":"2.0","id":"7","result":{deep}}}'.encode())
    with pytest.raises(RequestError):
        await asked
    assert client.orphans == []


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


@pytest.mark.parametrize(
    ("method", "code"), [("textDocument/hover", -32602), ("tokens/nothing", -32601)]
)
async def test_malformed_and_unknown_requests_are_answered(
    client: Client, method: str, code: int
) -> None:
    with pytest.raises(RpcError) as caught:
        await client.request(method, {"position": "here"})
    assert caught.value.code == code


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


async def test_bad_frames_are_reported(client: Client) -> None:
    client.server.protocol.receive(InvalidFrame("skipped bytes that are not a header"))
    assert client.orphans[-1]["error"]["code"] == -32700


async def test_no_text_reaches_the_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client.ignore("status/update")
    client.open("SECRET text")
    client.change({"range": "SECRET", "text": "SECRET"})
    with pytest.raises(RpcError):
        await client.request("tokens/count", {"text": ["SECRET"]})
    await client.request("tokens/count", {"text": "SECRET"})
    client.send_bytes(b'{"jsonrpc":"2.0","id":1,"method":"x","params":"SECRET')
    assert client.orphans[-1]["error"]["code"] == -32700
    assert "rejected a message" in caplog.text
    assert "SECRET" not in caplog.text
