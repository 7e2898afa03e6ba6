"""Tests conversations with a real llama.cpp: truncated replies, hidden paths and restarts."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.llama.counting_proxy import CountingProxy
from tests.e2e.llama.own import chat_tokens, post
from tests.e2e.llama.server import llama, port_of
from tests.e2e.llama.test_llama_session import session
from tests.e2e.llama.test_llama_texts_only import HIDDEN, some_text

EXCHANGES = 15
ROUTES = {"all": (), "texts only": HIDDEN, "no count": (*HIDDEN, b"/tokenize")}
QUIET = ("status/update", "textDocument/publishDiagnostics")


@pytest.mark.parametrize("hidden", ROUTES.values(), ids=ROUTES)
async def test_thirty_turns_with_cut_off_replies_are_counted(
    hidden: tuple[bytes, ...],
    models: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = random.Random(17)
    with llama(models["qwen2"], "--alias", "tiny") as url:
        async with (
            CountingProxy(url, hidden) as proxy,
            session(proxy.url, tmp_path, monkeypatch, ignored=QUIET) as client,
        ):
            messages: list[dict[str, Any]] = []
            for number in range(EXCHANGES):
                turn = {"role": "user", "content": some_text(source, number)}
                messages.append(turn)
                before = proxy.requests
                usage = await client.request("context/append", {"session": "s", "turns": [turn]})
                asked = proxy.requests - before
                truth = chat_tokens(url, messages)
                if hidden is not ROUTES["no count"]:
                    shown = usage["tokens"] * usage["errorPercent"] / 100
                    off = abs(usage["tokens"] - truth)
                    assert off <= (truth / 100 if number else shown) + 1, (number, usage, truth)
                    assert asked == 1 or number == 0, (number, asked)
                body = {"messages": messages, "max_tokens": 8, "model": "tiny"}
                reply = post(f"{url}/v1/chat/completions", body)
                answer = await client.request(
                    "context/response", {"session": "s", "response": reply}
                )
                assert (answer["exhausted"], answer["stopReason"]) == ("output", "length")
                assert answer["model"] == reply["model"]
                after = await client.request("context/usage", {"session": "s"})
                told = reply["usage"]
                assert after["tokens"] == told["prompt_tokens"] + told["completion_tokens"]
                assert not after["compacted"]
                message = {"role": "assistant", "content": answer["content"]}
                messages.append(message)
                await client.request("context/append", {"session": "s", "turns": [message]})
            assert (await client.request("context/usage", {"session": "s"}))["turns"] == 30
            warnings = [await client.take("context/warning") for _ in range(EXCHANGES)]
            assert {warning["kind"] for warning in warnings} == {"exhausted"}


async def test_a_window_that_a_reply_contradicts_is_looked_up_again(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is restarted with a larger context window during the conversation."""
    options = ("--alias", "tiny", "--context")
    text = some_text(random.Random(3), 1)
    turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n in range(9)]
    with ExitStack() as first:
        url = first.enter_context(llama(models["qwen2"], *options, "2048"))
        async with session(url, tmp_path, monkeypatch) as client:
            usage = await client.request("context/append", {"session": "s", "turns": turns})
            assert (usage["limit"], usage["limitSource"]) == (2048, "endpoint")
            assert usage["over"]
            first.close()
            with llama(models["qwen2"], *options, "8192", port=port_of(url)):
                body = {"messages": turns, "max_tokens": 4, "model": "tiny"}
                reply = post(f"{url}/v1/chat/completions", body)
                assert reply["usage"]["prompt_tokens"] > 2048
                await client.request("context/response", {"session": "s", "response": reply})
                after = await client.request("context/usage", {"session": "s"})
                assert (after["limit"], after["over"]) == (8192, False)
