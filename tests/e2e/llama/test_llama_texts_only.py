"""Tests conversations of 30 turns with a real llama.cpp, when only `/tokenize` is available."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.llama.counting_proxy import CountingProxy
from tests.e2e.llama.gguf import CHATML, write_model
from tests.e2e.llama.own import chat_tokens, post, text_tokens
from tests.e2e.llama.server import llama
from tests.e2e.llama.test_llama_session import session
from tests.e2e.llama.vocabularies import ensure_vocabularies

HIDDEN = (b"/v1/chat/completions/input_tokens", b"/apply-template")
WORDY = (
    "{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}"
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\n[turn] ' "
    "+ (message['content'] or '') + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""A chat template with a default system prompt, and with more markup than our formula assumes."""


def some_text(source: random.Random, number: int) -> str:
    """Return text that alternates between hex digits, numbers, code and CJK."""
    kinds = (
        lambda: source.randbytes(source.randint(20, 120)).hex(),
        lambda: ", ".join(str(source.random()) for _ in range(source.randint(5, 30))),
        lambda: "def f(x: int) -> int:\n    return x + 1\n" * source.randint(2, 8),
        lambda: "日本語のテキスト 中文 한국어 " * source.randint(2, 10),
    )
    return kinds[number % len(kinds)]()


async def _turn_counts(client: Any) -> list[int]:
    """Return the server's count of each turn's text, excluding the template."""
    [conversations] = client.server.services._conversations.values()
    counts = conversations.sessions.conversations.get("s").model_counts().turns
    return [measure.counted for measure in counts.measures]


@pytest.mark.parametrize("template", [CHATML, WORDY], ids=["chatml", "wordy"])
async def test_a_conversation_is_counted_turn_by_turn(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.gguf"
    write_model(model, ensure_vocabularies()["qwen2"], name="tiny", template=template)
    source = random.Random(11)
    with llama(model) as url:
        async with (
            CountingProxy(url, HIDDEN) as proxy,
            session(proxy.url, tmp_path, monkeypatch) as client,
        ):
            messages: list[dict[str, Any]] = []
            for number in range(30):
                turn = {
                    "role": ("user", "assistant")[number % 2],
                    "content": some_text(source, number),
                }
                messages.append(turn)
                reported = None
                if number % 2 and number >= 9:
                    prompt = chat_tokens(url, messages[:-1])
                    output = text_tokens(url, turn["content"])
                    reported = {"prompt_tokens": prompt, "completion_tokens": output}
                before = proxy.requests
                params = {"session": "s", "turns": [turn], "usage": reported}
                usage = await client.request("context/append", params)
                asked = proxy.requests - before
                truth = chat_tokens(url, messages)
                off = abs(usage["tokens"] - truth)
                if number < 9:
                    assert off <= usage["tokens"] * usage["errorPercent"] / 100 + 1, number
                else:
                    assert off <= truth / 100, (number, usage["tokens"], truth)
                assert asked == 1 or number == 0, (number, asked)
            texts = [text_tokens(url, turn["content"]) for turn in messages]
            assert await _turn_counts(client) == texts


async def test_a_window_that_overflows_is_noticed(
    llama_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(3)
    async with (
        CountingProxy(llama_url, HIDDEN) as proxy,
        session(proxy.url, tmp_path, monkeypatch) as client,
    ):
        turns = [
            {"role": ("user", "assistant")[n % 2], "content": source.randbytes(120).hex()}
            for n in range(30)
        ]
        usage = await client.request("context/append", {"session": "s", "turns": turns})
        truth = chat_tokens(llama_url, turns)
        assert truth > usage["usable"], "the server would refuse it"
        assert (usage["over"], usage["shouldPrune"]) == (True, True)
        assert abs(usage["tokens"] - truth) <= usage["tokens"] * usage["errorPercent"] / 100
        refused = post(f"{llama_url}/v1/chat/completions", {"messages": turns, "max_tokens": 1})
        assert refused["error"]["n_prompt_tokens"] == truth
