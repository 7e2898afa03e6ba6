"""Tests that `tokens/count` returns the same number as tiktoken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.protocol.client import URI, Client, RpcError, edit
from tests.truth import truth

FIRST_LINE = edit((0, 0), (1, 0), "")["range"]
TEXTS = [
    "hello world",
    "const x = 1;\r\nlet y = 2;\r\n",
    "日本語のテキスト、絵文字🙂も。\n次の行\n",
    "a\x0cb\nsecond\x85line\u2028end\n",
    "<|endoftext|><|im_start|>user",
    "lone \ud800 surrogate \udc00 pair",
    " " * 5_000 + "x" + "\t" * 300,
    "\x00" * 200,
]


@pytest.mark.parametrize("text", TEXTS)
async def test_text_and_document_equal_tiktoken(client: Client, text: str) -> None:
    client.ignore("status/update")
    for model, encoding in (("gpt-5", "o200k_base"), ("gpt-4", "cl100k_base")):
        count = await client.request("tokens/count", {"text": text, "model": model})
        expected = (truth(text, encoding), "exact", encoding, 0)
        assert (
            count["tokens"],
            count["method"],
            count["tokenizer"],
            count["errorPercent"],
        ) == expected
        assert count["characters"] == len(text)
    client.open(text)
    count = await client.count()
    assert (count["tokens"], count["version"], count["model"]) == (truth(text), 1, "gpt-5")


async def test_count_after_an_edit_is_answered_immediately(
    client: Client,
) -> None:
    client.ignore("status/update")
    client.open("hello world\n" * 1_000)
    await client.count()
    for version in range(2, 6):
        client.change(edit((500, 5), (500, 5), " new"))
        answer = client.answers[version] = asyncio.get_running_loop().create_future()
        params = {"textDocument": {"uri": URI}}
        client.send({"jsonrpc": "2.0", "id": version, "method": "tokens/count", "params": params})
        assert answer.done()
        assert answer.result()["result"]["version"] == version
        assert answer.result()["result"]["tokens"] == 3_000 + version - 1


async def test_empty_text_is_zero_and_exact_for_any_model(client: Client) -> None:
    for model in ("gpt-5", "no-such-model", "claude-sonnet-4-5"):
        count = await client.request("tokens/count", {"text": "", "model": model})
        assert (count["tokens"], count["method"], count["model"]) == (0, "exact", model)


async def test_ranges_and_models_in_one_answer(client: Client) -> None:
    client.ignore("status/update")
    client.open("alpha beta\ngamma 🙂 delta\nomega\n")
    spans = [edit((0, 0), (1, 0), "")["range"], edit((1, 6), (1, 8), "")["range"]]
    count = await client.count(ranges=spans, models=["gpt-4", "gpt-4o"], range=spans[0])
    assert count["tokens"] == truth("alpha beta\n")
    assert [part["tokens"] for part in count["ranges"]] == [truth("alpha beta\n"), truth("🙂")]
    tokenizers = [(part["model"], part["tokenizer"]) for part in count["models"]]
    assert tokenizers == [("gpt-4", "cl100k_base"), ("gpt-4o", "o200k_base")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
async def test_edits_in_every_encoding(bare: Client, encoding: str) -> None:
    await bare.initialize(encodings=[encoding])
    bare.ignore("status/update")
    bare.open("🙂é日\nsecond\n")
    width = {"utf-8": 4, "utf-16": 2, "utf-32": 1}[encoding]
    bare.change(edit((0, width), (0, width), "X"), edit((1, 99), (1, 99), "!"))
    count = await bare.count(range=edit((0, 0), (99, 0), "")["range"])
    assert count["characters"] == len("🙂Xé日\nsecond!\n")
    assert (await bare.count())["tokens"] == truth("🙂Xé日\nsecond!\n")


async def test_a_reversed_range_is_the_range_between_its_ends(client: Client) -> None:
    client.ignore("status/update")
    client.open("one two\n")
    client.change(edit((0, 99), (0, 3), " and a half"))
    text = "one and a half\n"
    assert (await client.count())["tokens"] == truth(text)
    reversed_range = edit((5, 0), (0, 3), "")["range"]
    count = await client.count(range=reversed_range, ranges=[reversed_range])
    assert count["tokens"] == count["ranges"][0]["tokens"] == truth(text[3:])
    params = {"textDocument": {"uri": URI}, "range": reversed_range, "maxTokens": 100}
    assert (await client.request("tokens/fit", params))["text"] == text[3:]
    section = {"name": "part", "textDocument": {"uri": URI}, "range": reversed_range}
    usage = await client.request("context/set", {"sections": [section]})
    assert usage["largest"][0]["label"] == "section part"
    assert usage["largest"][0]["tokens"] >= truth(text[3:])


async def test_a_closed_document_is_unknown(client: Client) -> None:
    client.ignore("status/update")
    client.open("text")
    client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
    with pytest.raises(RpcError) as caught:
        await client.count()
    assert caught.value.data == {"kind": "unknownDocument", "retryable": False}


async def test_long_runs_are_counted(client: Client) -> None:
    for text in (" " * 1_000_000, "a" * 1_000_000, "\x00" * 1_000_000):
        count = await client.request("tokens/count", {"text": text})
        assert count["method"] == "exact"
        assert 0 < count["tokens"] <= len(text)


LONG_CHARACTERS = 250_000
LONG = "some words\n" * (LONG_CHARACTERS // 10)
LONGER = "other words\n" * (LONG_CHARACTERS // 10)
TYPED = edit((0, 0), (0, 0), "many "), edit((0, 5), (0, 5), "more "), edit((1, 0), (2, 0), "")


@pytest.mark.parametrize(
    ("changes", "now"),
    [
        (TYPED, "many more " + LONG.replace("\n" + "some words\n", "\n", 1)),
        ((*TYPED, {"text": LONGER}), LONGER),
        (({"text": LONGER}, *TYPED), "many more " + LONGER.replace("\nother words", "", 1)),
        ((*TYPED, {"text": "short\n"}), "short\n"),
        (({"text": "short\n"}, *TYPED[:2]), "many more short\n"),
    ],
)
async def test_edits_right_after_a_long_document_is_opened(
    client: Client,
    changes: tuple[dict[str, object], ...],
    now: str,
) -> None:
    client.ignore("status/update")
    client.open(LONG)
    for change in changes:
        client.change(change)
    count = await client.count()
    assert (count["version"], count["tokens"]) == (1 + len(changes), truth(now))
    assert client.server.services.documents.get_open(URI).text == now


@pytest.mark.parametrize("lines", [3, LONG_CHARACTERS // 10])
async def test_requests_refer_to_the_text_at_the_time_of_the_request(
    client: Client, lines: int
) -> None:
    """The document is edited immediately after the requests have been sent."""
    client.ignore("status/update")
    text = "some words\n" * lines
    client.open(text)
    fit = {"textDocument": {"uri": URI}, "maxTokens": 50, "range": FIRST_LINE}
    asked = asyncio.gather(
        client.count(ranges=[FIRST_LINE]),
        client.count(range=FIRST_LINE),
        client.count(models=["gpt-4"]),
        client.request("tokens/fit", fit),
    )
    await asyncio.sleep(0)  # Let the client send its messages first.
    client.change(edit((0, 0), (0, 0), "many more "))
    both, alone, whole, fitted = await asked
    assert (both["version"], both["tokens"]) == (1, truth(text))
    assert [part["tokens"] for part in both["ranges"]] == [truth("some words\n")]
    assert (alone["version"], alone["tokens"]) == (1, truth("some words\n"))
    assert (whole["version"], whole["tokens"]) == (1, truth(text))
    assert fitted["text"] == "some words\n"
    now = await client.count(range=FIRST_LINE)
    assert (now["version"], now["tokens"]) == (2, truth("many more some words\n"))


async def test_ranges_of_a_document_closed_during_the_request_are_counted(client: Client) -> None:
    client.ignore("status/update")
    client.open("some words\n" * (LONG_CHARACTERS // 10))
    asked = asyncio.gather(client.count(ranges=[FIRST_LINE]))
    await asyncio.sleep(0)
    client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
    (count,) = await asked
    assert [part["tokens"] for part in count["ranges"]] == [truth("some words\n")]
    with pytest.raises(RpcError, match="not open"):
        await client.count(ranges=[FIRST_LINE])


@pytest.mark.parametrize("more", [{}, {"ranges": [FIRST_LINE]}])
async def test_document_may_be_opened_after_its_count_is_requested_during_startup(
    client: Client, more: dict[str, Any]
) -> None:
    """An editor command may start the server and send a request before documents are opened."""
    client.ignore("status/update")
    configured = client.server.services.configured
    await configured.wait()
    configured.clear()
    asked = asyncio.ensure_future(client.count(**more))
    await asyncio.sleep(0)
    client.open("some words\n")
    await asyncio.sleep(0)
    configured.set()
    assert (await asked)["tokens"] == truth("some words\n")


@pytest.mark.parametrize("lines", [10, LONG_CHARACTERS // 10])
@pytest.mark.parametrize("again", [False, True])
async def test_document_closed_during_the_request_is_counted(
    client: Client, lines: int, again: bool
) -> None:
    """Another document is opened with the same URI before the count is done."""
    client.ignore("status/update")
    client.open("some words\n" * lines)
    fit = {"textDocument": {"uri": URI}, "maxTokens": 10_000_000}
    asked = asyncio.gather(
        client.count(models=["gpt-4o"]), client.count(), client.request("tokens/fit", fit)
    )
    await asyncio.sleep(0)
    client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
    if again:
        client.open("another text")
    answers = await asked
    assert {answer["tokens"] for answer in answers} == {truth("some words\n" * lines)}
