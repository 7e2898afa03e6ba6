"""What was once found out about a model server is asked again, and shown, by our server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.llama.test_llama_session import session
from tests.unit.endpoints_fake_server import REASONS, Canned, FakeServer, Ollama, listing, llamacpp

if TYPE_CHECKING:
    from pathlib import Path


def reply(prompt: int, output: int, reason: str = "stop") -> dict[str, Any]:
    """What `/api/chat` answers."""
    return {
        "model": "tiny",
        "created_at": "2026-11-22T00:00:00Z",
        "message": {"role": "assistant", "content": "Yes."},
        "done": True,
        "done_reason": reason,
        "prompt_eval_count": prompt,
        "eval_count": output,
    }


async def test_the_window_follows_what_ollama_has_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Ollama()
    async with server, session(server.url, tmp_path, monkeypatch) as client:
        turn = {"role": "user", "content": "Hello?"}
        before = await client.request("context/append", {"session": "s", "turns": [turn]})
        assert (before["limit"], before["limitSource"]) == (131_072, "endpoint")
        server.running["tiny:latest"] = 4_096
        await client.request("context/response", {"session": "s", "response": reply(30, 4)})
        after = await client.request("context/usage", {"session": "s"})
        assert (after["limit"], after["limitSource"]) == (4_096, "endpoint")
        server.running["tiny:latest"] = 8_192  # loaded again, by `options: {num_ctx: 8192}`
        usage = {"prompt_tokens": 5_000, "completion_tokens": 4}
        turns = [{"role": "assistant", "content": "Yes."}, turn]
        after = await client.request(
            "context/append", {"session": "s", "turns": turns, "usage": usage}
        )
        assert after["limit"] == 8_192


async def test_the_window_is_asked_again_on_a_model_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Ollama()
    async with server, session(server.url, tmp_path, monkeypatch) as client:
        turn = {"role": "user", "content": "Hello?"}
        await client.request("context/append", {"session": "s", "turns": [turn]})
        await client.request("context/set", {"session": "s", "model": "gpt-5"})
        server.running["tiny:latest"] = 2_048
        after = await client.request("context/set", {"session": "s", "model": "tiny"})
        assert after["limit"] == 2_048


NEXT_STEPS: list[tuple[bool, Any, str]] = [
    (False, listing("tiny"), "endpoints are off: set use-endpoint = true"),
    (True, *REASONS[0]),
    (True, *REASONS[2]),
    (True, *REASONS[3]),
    (True, *REASONS[4]),
]


@pytest.mark.parametrize(("use", "answer", "step"), NEXT_STEPS)
async def test_the_tooltip_says_why_a_server_does_not_count(
    use: bool, answer: Canned, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def says(status: Any) -> bool:
        tooltip = (status["document"] or {}).get("tooltip", "")
        return step in re.sub(r"\\(.)", r"\1", tooltip)

    async with (
        FakeServer({("GET", "/v1/models"): answer}) as server,
        session(server.url, tmp_path, monkeypatch, use, ignored=()) as client,
    ):
        client.open("hello world\n", uri=f"{tmp_path.as_uri()}/a.md")
        await client.take("status/update", says)
        client.ignore("status/update")


async def test_the_window_alone_shows_for_a_document_without_a_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        llamacpp() as server,
        session(server.url, tmp_path, monkeypatch, False, "endpoint-window = true\n", ()) as client,
    ):
        client.open("hello world\n", uri=f"{tmp_path.as_uri()}/a.md")
        status = await client.take("status/update", lambda it: it["document"])
        assert "2,048 tokens" in status["document"]["tooltip"]
        count = await client.request("tokens/count", {"text": "hello world"})
        found = count["limit"], count["limitSource"], count["method"]
        assert found == (2_048, "endpoint", "estimate")
        asked = len(server.asked)
        await client.request("tokens/count", {"text": "hello again"})
        assert (server.posts(), len(server.asked)) == ([], asked)
