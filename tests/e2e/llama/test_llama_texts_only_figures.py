"""Measures counts of 30 turns with a real llama.cpp, when only `/tokenize` is available.

`pytest -s` prints a row for each kind of text: the error of the count before the first usage
report, the displayed error band, the error after the report, and the requests per new turn.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.llama.counting_proxy import CountingProxy
from tests.e2e.llama.gguf import write_model
from tests.e2e.llama.own import chat_tokens, text_tokens
from tests.e2e.llama.server import llama
from tests.e2e.llama.test_llama_session import session
from tests.e2e.llama.test_llama_texts_only import HIDDEN, WORDY, some_text
from tests.e2e.llama.vocabularies import ensure_vocabularies
from tests.protocol.client import Client

KINDS = ("hex", "numbers", "code", "CJK")
"""Text kinds, in the same order as in `some_text`."""
TURNS, SILENT = 30, 11
"""The total number of turns, and the number of turns before the first usage report."""
AFTER_PERCENT = 1.0
PROBE = 7
"""The number of requests in the first turn.

They list the models, read the window, count two test strings, try to count a chat (404), and count
the turn.
"""
CONTEXT = 32_768


class Row(NamedTuple):
    """A turn's displayed count, its true count, and the number of requests sent."""

    tokens: int
    band: float
    truth: int
    requests: int

    @property
    def off(self) -> float:
        """Return the count's error in percent."""
        return 100 * abs(self.tokens - self.truth) / self.truth


async def _rows(client: Client, proxy: CountingProxy, url: str, kind: int) -> list[Row]:
    source, messages, rows = random.Random(23), list[dict[str, Any]](), list[Row]()
    for number in range(TURNS):
        turn = {"role": ("user", "assistant")[number % 2], "content": some_text(source, kind)}
        reported = None
        if number % 2 and number >= SILENT:
            prompt = chat_tokens(url, messages)
            output = text_tokens(url, turn["content"])
            reported = {"prompt_tokens": prompt, "completion_tokens": output}
        messages.append(turn)
        before = proxy.requests
        params = {"session": "s", "turns": [turn], "usage": reported}
        usage = await client.request("context/append", params)
        band = usage["errorPercent"]
        truth = chat_tokens(url, messages)
        rows.append(Row(usage["tokens"], band, truth, proxy.requests - before))
    return rows


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=KINDS)
async def test_a_conversation_of_one_kind_of_text_is_counted_within_its_band(
    kind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This template is unusually hard to predict. Counts with other templates are more accurate."""
    model = tmp_path / "model.gguf"
    write_model(model, ensure_vocabularies()["qwen2"], CONTEXT, name="tiny", template=WORDY)
    with llama(model, "--alias", "tiny", "--context", str(CONTEXT)) as url:
        async with (
            CountingProxy(url, HIDDEN) as proxy,
            session(proxy.url, tmp_path, monkeypatch) as client,
        ):
            rows = await _rows(client, proxy, url, kind)
            silent, known = rows[:SILENT], rows[SILENT:]
            print(
                f"{KINDS[kind]}: {rows[-1].truth:,} tokens; before: off at most "
                f"{max(row.off for row in silent):.1f} % of ±{min(r.band for r in silent):.1f} to "
                f"{max(row.band for row in silent):.1f} %; after: {max(r.off for r in known):.2f} %; "
                f"requests: {rows[0].requests} at first, then {sorted({r.requests for r in rows[1:]})}"
            )
            for row in silent:
                assert abs(row.tokens - row.truth) <= row.tokens * row.band / 100 + 1, row
            assert max(row.off for row in known) <= AFTER_PERCENT
            assert [row.requests for row in rows] == [PROBE] + [1] * (TURNS - 1)
