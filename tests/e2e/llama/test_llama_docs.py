"""The examples of the two pages on endpoints, against a real llama.cpp."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from sidecar.config.load import load
from sidecar.endpoints import http, registry
from sidecar.endpoints.clouds.table import CLOUDS
from sidecar.endpoints.registry import Endpoints
from sidecar.endpoints.replies import FORMATS

DOCS = Path(__file__).resolve().parents[3] / "docs"
REFERENCE = (DOCS / "reference/endpoints.md").read_text("utf-8")
HOW_TO = (DOCS / "how-to/local-models.md").read_text("utf-8")


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


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


async def test_the_capability_on_the_page_is_what_the_server_has(llama_url: str) -> None:
    [example] = blocks(REFERENCE, "json")
    [configuration] = blocks(REFERENCE, "toml")
    declared = msgspec.toml.decode(configuration)["endpoint"][0]
    assert declared["url"] in example
    from sidecar.config.settings import Endpoint

    models = tuple(declared["models"])
    endpoints = Endpoints([Endpoint(url=llama_url, models=models)], True, {})
    rows = msgspec.to_builtins(await endpoints.probe())
    assert endpoints.requests == 6, "as the page says"
    expected = msgspec.json.decode(example)
    expected[0] |= {"endpoint": llama_url, "checkedAt": rows[0]["checkedAt"]}
    assert rows == expected
    await endpoints.aclose()


def test_the_figures_on_the_page_are_those_of_the_code() -> None:
    assert f"{registry.CHUNK_CHARACTERS:,} characters" in REFERENCE
    assert f"more than {registry.LARGEST_CHARACTERS:,}" in REFERENCE
    assert f"{http.BODY_BYTES // 2**20} MB are read" in REFERENCE
    assert f"A request has {http.REQUEST_SECONDS:g} seconds" in REFERENCE


def test_the_tables_name_every_format_and_every_vendor_that_counts() -> None:
    assert all(f"`{name}`" in REFERENCE for name in FORMATS)
    for cloud in CLOUDS:
        request = cloud.server.text and cloud.server.text("M", "x")
        if request:
            assert request.path.removeprefix("/v1beta/").removeprefix("/v1") in REFERENCE
