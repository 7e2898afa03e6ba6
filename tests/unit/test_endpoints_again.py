"""What was once found out about a server is asked again when it may have changed."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sidecar.cli.count import count
from sidecar.config.settings import Endpoint
from sidecar.endpoints.outcome import OFF, WINDOWS_ALONE, EndpointCount, Miss
from sidecar.endpoints.registry import Endpoints
from tests.e2e.llama.test_llama_session import session
from tests.unit.endpoints_fake_server import Canned, FakeServer, listing, llamacpp

if TYPE_CHECKING:
    from pathlib import Path


class Ollama(FakeServer):
    """Answers as Ollama does: it loads a model at its first request, with a smaller window."""

    def __init__(self) -> None:
        super().__init__()
        self.running: dict[str, int] = {}
        """Windows by the models that are loaded."""
        info = {"general.architecture": "llama", "llama.context_length": 131_072}
        self.routes = {
            ("GET", "/v1/models"): listing("tiny:latest", "other:latest", owned_by="library"),
            ("GET", "/"): Canned(body=b"Ollama is running"),
            ("GET", "/api/ps"): lambda _: Canned(body={"models": self._running()}),
            ("POST", "/api/show"): Canned(body={"parameters": "", "model_info": info}),
        }

    def _running(self) -> list[dict[str, Any]]:
        return [{"name": name, "context_length": size} for name, size in self.running.items()]


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


async def test_the_address_of_ollamas_own_api_is_its_address_too() -> None:
    server = Ollama()
    async with server:
        declared = [Endpoint(url=f"{server.url}/api")]
        endpoints = Endpoints(declared, True, {})
        assert await endpoints.limit("tiny") == 131_072
        await endpoints.aclose()


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


async def test_a_reply_larger_than_the_window_has_it_asked_again() -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()
        assert await endpoints.limit("tiny") == 2048
        server.routes["GET", "/props"] = Canned(
            body={"default_generation_settings": {"n_ctx": 16_384}}
        )
        asked = endpoints.requests
        await endpoints.replied("tiny", 2_000)
        assert (endpoints.requests, endpoints.known_limit("tiny")) == (asked, 2048)
        await endpoints.replied("tiny", 3_000)
        assert endpoints.known_limit("tiny") == 16_384
        await endpoints.aclose()


async def test_what_was_unsupported_is_tried_again_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    async with llamacpp() as server:
        routes = dict(server.routes)
        del server.routes["POST", "/tokenize"], server.routes["POST", CHAT]
        endpoints = server.endpoints()
        probes = []
        for second in range(0, 600, 10):
            now = float(second)
            before = endpoints.requests
            assert isinstance(await endpoints.count_text("tiny", "hello world"), Miss)
            probes += [second] if endpoints.requests > before else []
            assert endpoints.known_limit("tiny") == 2048, "the window stays"
        assert probes == [0, 60, 180, 420]
        server.routes = routes
        now = 900.0
        assert isinstance(await endpoints.count_text("tiny", "hello world"), EndpointCount)
        await endpoints.aclose()


async def test_a_probe_by_hand_does_not_wait() -> None:
    async with llamacpp() as server:
        routes, server.routes = server.routes, {}
        endpoints = server.endpoints()
        assert isinstance(await endpoints.count_text("tiny", "hello world"), Miss)
        server.routes = routes
        [row] = await endpoints.probe(model="tiny")
        assert (row.text, row.chat, row.reason) == ("supported", "supported", None)
        await endpoints.aclose()


CHAT = "/v1/chat/completions/input_tokens"


@pytest.mark.parametrize("path", ["/tokenize", CHAT])
async def test_a_server_that_becomes_constant_in_the_session_is_found_out(path: str) -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()

        async def count(number: int) -> EndpointCount | Miss:
            text = "word " * number
            if path == CHAT:
                return await endpoints.count_chat("tiny", [{"role": "user", "content": text}])
            return await endpoints.count_text("tiny", text)

        assert isinstance(await count(20), EndpointCount)
        answer = {"tokens": list(range(77)), "input_tokens": 77}
        server.routes["POST", path] = Canned(body=answer)
        await count(20)
        found = await count(80)
        assert isinstance(found, Miss)
        assert found.kind == "lying"
        assert "77" in found.reason
        await endpoints.aclose()


async def test_the_window_alone_by_its_own_setting() -> None:
    async with llamacpp() as server:
        declared = [Endpoint(url=server.url)]
        endpoints = Endpoints(declared, False, {}, window=True)
        assert await endpoints.limit("tiny") == 2048
        assert not endpoints.serves("tiny")
        found = await endpoints.count_text("tiny", "hello world")
        assert (server.posts(), found) == ([], Miss(OFF, "off"))
        [row] = endpoints.capabilities()
        assert (row.limit, row.reason) == (2048, WINDOWS_ALONE)
        await endpoints.aclose()
        silent = Endpoints(declared, False, {})
        assert await silent.limit("tiny") is None
        [row] = await silent.probe()
        assert (row.reason, silent.requests) == (OFF, 0)


REASONS: list[tuple[Any, str]] = [
    (Canned(401, {"error": {"message": "no"}}), "api-key-env"),
    (Canned(503, {"error": {"message": "Loading model"}}), "asked again"),
    (Canned(500, {}), "start the server"),
    (listing("another", owned_by="llamacpp"), "choose one that the server has"),
    (listing("tiny", owned_by="library"), "tokenizer.json"),
]


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


WINDOW_ALONE = 'model = "tiny"\n[tokenize]\nendpoint-window = true\n[[endpoint]]\nurl = "{}"\n'


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


async def test_the_window_alone_stands_in_the_json_of_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.md").write_text("hello world")
    async with llamacpp() as server:
        (tmp_path / "config.toml").write_text(WINDOW_ALONE.format(server.url))
        monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(tmp_path / "config.toml"))
        arguments = [str(tmp_path / "a.md"), "--json"]
        done = await asyncio.to_thread(CliRunner().invoke, count, arguments)
        [file] = json.loads(done.output)["files"]
        assert (file["limit"], file["limitSource"]) == (2_048, "endpoint")
        assert (file["method"], server.posts()) == ("estimate", [])


@pytest.mark.parametrize(("answer", "step"), REASONS)
async def test_each_reason_names_the_next_step(answer: Canned, step: str) -> None:
    async with FakeServer({("GET", "/v1/models"): answer}) as server:
        endpoints = server.endpoints()
        miss = await endpoints.count_text("tiny", "hello world")
        assert isinstance(miss, Miss)
        assert step in miss.reason
        [row] = endpoints.capabilities()
        assert row.reason == miss.reason
        await endpoints.aclose()
