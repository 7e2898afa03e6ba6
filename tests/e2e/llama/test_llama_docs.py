"""Tests the examples in the two documentation pages about endpoints, with a real llama.cpp."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.config.load import load
from sidecar.config.settings import Endpoint
from sidecar.endpoints import http, outcome
from sidecar.endpoints.clouds import clouds
from sidecar.endpoints.endpoints import Endpoints
from sidecar.messages.replies import FORMATS
from tests.e2e.llama.own import text_tokens
from tests.e2e.llama.server import llama
from tests.unit.endpoints_fake_server import Ollama

DOCS = Path(__file__).resolve().parents[3] / "docs"
REFERENCE = (DOCS / "reference/endpoints.md").read_text("utf-8")
HOW_TO = (DOCS / "how-to/local-models.md").read_text("utf-8")
TEXT = "日本語のテキスト and some words, x = {1: 2}\n" * 20


def blocks(page: str, language: str) -> list[str]:
    matches = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in matches]


@pytest.mark.parametrize("example", [*blocks(REFERENCE, "toml"), *blocks(HOW_TO, "toml")])
def test_every_configuration_on_the_pages_is_valid(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(example)
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(file))
    loaded = load(None)
    assert not loaded.problems
    assert loaded.settings.endpoints or loaded.settings.tokenizers


async def test_the_capability_on_the_page_is_that_of_the_server(llama_url: str) -> None:
    [example] = blocks(REFERENCE, "json")
    [configuration] = blocks(REFERENCE, "toml")
    declared = msgspec.toml.decode(configuration)["endpoint"][0]
    assert declared["url"] in example
    models = tuple(declared["models"])
    endpoints = Endpoints([Endpoint(url=llama_url, models=models)], True, {})
    rows = msgspec.to_builtins(await endpoints.probe())
    assert endpoints.requests == 7, "as the page says"
    expected = msgspec.json.decode(example)
    expected[0] |= {"endpoint": llama_url, "checkedAt": rows[0]["checkedAt"]}
    assert rows == expected
    await endpoints.aclose()


def test_the_figures_on_the_page_are_those_of_the_code() -> None:
    assert f"more than {outcome.LARGEST_CHARACTERS:,}" in REFERENCE
    assert f"{http.BODY_BYTES // 2**20} MB are read" in REFERENCE
    assert f"A request has {http.REQUEST_SECONDS:g} seconds" in REFERENCE


def test_the_tables_name_every_format_and_every_vendor_that_counts() -> None:
    assert all(f"`{name}`" in REFERENCE for name in FORMATS)
    for cloud in clouds():
        request = cloud.server.text and cloud.server.text.build("M", "x")
        if request:
            assert request.path.removeprefix("/v1beta/").removeprefix("/v1") in REFERENCE


def followed(monkeypatch: pytest.MonkeyPatch, folder: Path, address: str, name: str) -> str:
    """Follow the how-to page, and return the lines about endpoints that `doctor` prints."""
    config = folder / "new" / "config.toml"
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(config))
    assert CliRunner().invoke(main, ["config", "init", "--user"]).exit_code == 0
    example = blocks(HOW_TO, "toml")[0]
    written = example.replace("http://127.0.0.1:8080", address).replace("qwen2.5-coder", name)
    config.write_text(written.replace("qwen*", f"{name[:4]}*"))
    result = CliRunner().invoke(main, ["doctor", "--workspace", str(folder)])
    assert result.exit_code == 0, result.output
    return result.output.split("\nEndpoints ")[1].split("\n\nAgents")[0]


def counted(folder: Path) -> dict[str, Any]:
    """Return the output of `count --json` for a file."""
    (folder / "a.md").write_text(TEXT)
    result = CliRunner().invoke(main, ["count", str(folder / "a.md"), "--json"])
    found: dict[str, Any] = json.loads(result.output)["files"][0]
    return found


def test_the_how_to_leads_to_llama_cpps_own_count(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with llama(models["qwen2"], "--alias", "qwen2.5-coder") as url:
        shown = followed(monkeypatch, tmp_path, url, "qwen2.5-coder")
        assert "qwen2.5-coder: llamacpp, text supported, chat supported, window 8192" in shown
        found = counted(tmp_path)
        assert (found["method"], found["tokens"]) == ("endpoint", text_tokens(url, TEXT))
        assert (found["limit"], found["limitSource"]) == (8192, "endpoint")


async def test_the_how_to_leads_to_ollamas_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Ollama()
    async with server:
        server.running["tiny:latest"] = 4_096
        shown = await asyncio.to_thread(followed, monkeypatch, tmp_path, server.url, "tiny")
        assert "tiny: ollama, text unsupported, chat unsupported, window 4096" in shown
        assert "a tokenizer.json in [[tokenizer]] makes them exact" in shown
        found = await asyncio.to_thread(counted, tmp_path)
        assert (found["limit"], found["limitSource"]) == (4096, "endpoint")
        assert "makes them exact" in found["note"]
