"""Tests the messages about mistakes in an endpoint's configuration."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli.group import main
from sidecar.config.settings import Endpoint
from sidecar.endpoints.endpoints import Endpoints
from sidecar.endpoints.outcome import ENDPOINTS_OFF, Miss
from sidecar.server.server import create_server
from tests.protocol.client import Client
from tests.unit.endpoints_fake_server import Asked, Canned, expect_count, listing, llamacpp

KEY = "LLAMA_API_KEY"


async def sentence_of(declared: Endpoint, environment: dict[str, str]) -> str:
    """Return the reason why a count fails. Check that the endpoint reports the same reason."""
    endpoints = Endpoints([declared], True, environment)
    count = await endpoints.count_text("tiny", "hello world")
    [row] = endpoints.capabilities()
    await endpoints.aclose()
    assert isinstance(count, Miss)
    assert count.reason == row.reason
    return count.reason


@pytest.mark.parametrize(
    ("named", "held", "reason", "step"),
    [
        (None, {}, "the server needs a key (HTTP 401)", "set api-key-env to its name"),
        (
            KEY,
            {KEY: "wrong"},
            "refused the key (HTTP 401)",
            f"does {KEY} contain the server's key?",
        ),
        (KEY, {}, f"{KEY} (api-key-env) is not set", "in the environment of the editor or shell"),
        (KEY, {KEY: "a\nb"}, "contains no usable key", "in the environment of the editor or shell"),
    ],
)
async def test_missing_and_wrong_keys_have_different_reasons(
    named: str | None, held: dict[str, str], reason: str, step: str
) -> None:
    def guarded(asked: Asked) -> Canned:
        right = asked.headers.get("authorization") == "bearer right"
        return listing("tiny") if right else Canned(401, {"error": {"message": "no"}})

    async with llamacpp() as server:
        server.routes["GET", "/v1/models"] = guarded
        told = await sentence_of(Endpoint(url=server.url, api_key_env=named), held)
    assert reason in told
    assert step in told
    assert "wrong" not in told


@pytest.mark.parametrize(
    "path",
    ["/v1", "/v1/", "/v1/chat/completions", "/v1/models", "/api", "/api/chat", "/api/generate"],
)
async def test_url_with_a_request_path_is_accepted(path: str) -> None:
    async with llamacpp() as server:
        endpoints = Endpoints([Endpoint(url=f"{server.url}{path}")], True, {})
        expect_count(await endpoints.count_text("tiny", "hello world"))
        await endpoints.aclose()


async def test_reason_doubts_a_url_with_an_unknown_path() -> None:
    async with llamacpp() as server:
        told = await sentence_of(Endpoint(url=f"{server.url}/somewhere"), {})
    assert "check its url; if the url is correct, " in told
    assert "tokenizer.json" in told


UNASKED = [
    ("use-endpoint = true\n", "config init --user"),
    ('use-endpoint = true\n[[endpoint]]\nurl = "http://127.0.0.1:9"\nmodels = ["a*"]\n', "[[endp"),
    ('[[endpoint]]\nurl = "http://127.0.0.1:9"\n', ENDPOINTS_OFF),
]


@pytest.mark.parametrize(("written", "step"), UNASKED, ids=["none", "for another", "off"])
async def test_a_count_reports_why_no_endpoint_was_asked(
    written: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server and the command line give the same reason. Exact counts have no reason."""
    config, file = tmp_path / "config.toml", tmp_path / "a.md"
    config.write_text(f'model = "tiny"\n[tokenize]\n{written}')
    file.write_text("hello world\n")
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(config))
    monkeypatch.setenv("TOKEN_SIDECAR_STATE", str(tmp_path / "state"))
    server = create_server()
    client = Client(server)
    await client.initialize(root=tmp_path.as_uri())
    result = await client.request("tokens/count", {"text": "hello world\n"})
    exact = await client.request("tokens/count", {"text": "hello", "model": "gpt-5"})
    await server.services.aclose()
    server.close()
    assert step in result["note"]
    assert exact["note"] is None
    shown = await asyncio.to_thread(CliRunner().invoke, main, ["count", str(file), "--json"])
    [found] = json.loads(shown.stdout)["files"]
    assert found["note"] == result["note"]
    plain = await asyncio.to_thread(CliRunner().invoke, main, ["count", str(file)])
    assert plain.stdout == f"~{found['tokens']} {file}\n"
    is_told = f"token-sidecar: {found['note']}\n" in plain.stderr
    assert is_told == ("use-endpoint" in written), "what is off is off on purpose"
