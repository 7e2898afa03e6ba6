"""Tests that a document has the same count everywhere, and that no number shown is outdated.

Run `python -m tests.fuzz.shown_numbers --operations 100000` for a longer test.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.counting.calibration import (
    Calibrations,
    document_key,
    load_calibrations,
    save_calibrations,
)
from sidecar.counting.counts import Counts
from sidecar.counting.estimators import kind_of
from sidecar.counting.open_documents import Snapshot
from sidecar.endpoints.outcome import LARGEST_CHARACTERS
from sidecar.server.features.status_updates import StatusUpdates
from sidecar.server.server import create_server
from tests.fuzz.shown_numbers import stress
from tests.protocol.client import Client, until
from tests.unit.endpoints_fake_server import Canned, FakeServer, llamacpp, words

MODEL = "tiny"
TEXT = "# Title\n\n" + "Some prose, and some more of it, without an end.\n" * 40
NAME = "AGENTS.md"


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    project = f'model = "{MODEL}"\ninlay-hints = true\n[[budget]]\nfiles = "{NAME}"\n'
    (folder / ".token-sidecar.toml").write_text(project + "max-tokens = 400\nwarn-at = 0.1\n")
    return folder


@pytest.fixture
async def endpoint(root: Path) -> AsyncIterator[FakeServer]:
    async with llamacpp(MODEL) as server:
        written = f'[tokenize]\nuse-endpoint = true\n[[endpoint]]\nurl = "{server.url}"\n'
        (root.parent / "user-config.toml").write_text(written + f'models = ["{MODEL}"]\n')
        yield server


async def started(root: Path) -> Client:
    client = Client(create_server())
    await client.initialize(
        root.as_uri(),
        ignored=("status/update", "textDocument/publishDiagnostics", "context/warning"),
    )
    return client


def shown(client: Client, uri: str) -> int:
    """Return the document's token count, as shown in the status."""
    sent = client.feature(StatusUpdates)._sent[uri]
    assert sent is not None
    assert sent.document is not None
    return sent.document.tokens


async def numbers(client: Client, uri: str) -> dict[str, int]:
    """Return the document's token count as reported by each request and notification."""
    await settled(client)
    _, findings = await client.server.services.findings(uri)
    identifier = {"textDocument": {"uri": uri}}
    end = {"line": 1000, "character": 0}
    span = {"start": {"line": 0, "character": 0}, "end": end}
    hints = await client.request("textDocument/inlayHint", {**identifier, "range": span})
    fitted = await client.request("tokens/fit", {**identifier, "maxTokens": 100_000})
    count = await client.count(uri, models=[MODEL], ranges=[span])
    hover = await client.request(
        "textDocument/hover", {**identifier, "position": {"line": 0, "character": 0}}
    )
    assert f"{count['tokens']:,} tokens" in hover["contents"]["value"]
    return {
        "status": shown(client, uri),
        "diagnostic": findings[0].tokens,
        "hint": int(hints[0]["label"].strip("~").split()[0].replace(",", "")),
        "fit": fitted["tokens"],
        "count": count["tokens"],
        "range": count["ranges"][0]["tokens"],
        "models": count["models"][0]["tokens"],
    }


async def settled(client: Client) -> None:
    """Wait until all work caused by the start or a settings change is done."""
    jobs = ("status", "settings", "catalogue", "agents")
    await client.server.services.configured.wait()
    while any(key[0] in jobs for key in client.server.scheduler._jobs):
        await asyncio.sleep(0.01)


def opened(client: Client, root: Path, text: str = TEXT) -> str:
    uri = (root / NAME).as_uri()
    client.open(text, uri)
    return uri


async def test_an_estimate(root: Path) -> None:
    client = await started(root)
    counts = await numbers(client, opened(client, root))
    assert len(set(counts.values())) == 1, counts
    await client.aclose()


async def test_endpoints_count_is_shown_everywhere(root: Path, endpoint: FakeServer) -> None:
    client = await started(root)
    uri = opened(client, root)
    counts = await numbers(client, uri)
    assert set(counts.values()) == {words(TEXT)}, counts
    assert endpoint.posts().count("/tokenize") <= 12, "each text is sent once, plus the probe"
    fitted = await client.request(
        "tokens/fit", {"textDocument": {"uri": uri}, "maxTokens": 300, "mode": "start"}
    )
    assert (fitted["method"], fitted["tokens"]) == ("endpoint", words(fitted["text"]))
    assert 250 < fitted["tokens"] <= 300
    await client.aclose()


async def test_late_answer_is_shown_when_it_arrives(
    root: Path, endpoint: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.counting.counts.ENDPOINT_SECONDS", 0.0)
    client = await started(root)
    uri = opened(client, root)
    async with asyncio.timeout(60):
        while (await client.count(uri))["method"] != "endpoint":
            await asyncio.sleep(0.01)
    assert set((await numbers(client, uri)).values()) == {words(TEXT)}
    assert endpoint.posts().count("/tokenize") <= 8, "a pending request is not repeated"
    await client.aclose()


async def test_calibration_by_an_endpoint_applies_while_it_is_unavailable(
    root: Path, endpoint: FakeServer
) -> None:
    client = await started(root)
    uri = opened(client, root)
    plain = (await client.count(uri))["tokens"]
    for route in list(endpoint.routes):
        endpoint.routes[route] = Canned(503, {})
    client.change({"text": TEXT + "One more line of prose.\n"}, uri=uri)
    await client.request("capabilities/probe", {})
    counts = await numbers(client, uri)
    assert len(set(counts.values())) == 1, counts
    count = await client.count(uri)
    assert count["method"] == "calibrated"
    assert abs(count["tokens"] - plain) < plain * 0.15
    await client.aclose()


async def test_calibration_by_an_endpoint_applies_to_long_documents(
    root: Path, endpoint: FakeServer
) -> None:
    client = await started(root)
    uri = opened(client, root, TEXT * (LARGEST_CHARACTERS // len(TEXT) + 1))
    await settled(client)
    before = shown(client, uri)
    for number in range(3):
        await client.request("tokens/count", {"text": TEXT + " more" * number, "model": MODEL})
        await kept(client)
        await settled(client)
        counted = (await client.count(uri))["tokens"]
        assert shown(client, uri) == counted != before
        before = counted
    assert endpoint.posts()
    await client.aclose()


@pytest.mark.usefixtures("endpoint")
async def test_event_loop_does_not_hash_text_that_is_too_long_for_an_endpoint(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await started(root)
    hashed, make_request = list[int](), Counts._make_request

    def recorded(counts: Counts, snapshot: Snapshot, *more: Any) -> Any:
        hashed.append(snapshot.characters)
        return make_request(counts, snapshot, *more)

    monkeypatch.setattr(Counts, "_make_request", recorded)
    uri = opened(client, root, TEXT)
    assert (await client.count(uri))["method"] == "endpoint"
    assert set(hashed) == {len(TEXT)}
    client.change({"text": TEXT * (LARGEST_CHARACTERS // len(TEXT) + 1)}, uri=uri)
    assert "longer than 500,000 characters" in (await client.count(uri))["note"]
    assert set(hashed) == {len(TEXT)}
    await client.aclose()


async def test_calibration_by_an_endpoint_applies_on_the_command_line(
    root: Path, endpoint: FakeServer
) -> None:
    (root / NAME).write_text(TEXT)
    client = await started(root)
    uri = opened(client, root)
    assert (await client.count(uri))["method"] == "endpoint"
    for route in list(endpoint.routes):
        endpoint.routes[route] = Canned(503, {})
    await client.request("capabilities/probe", {})
    shown = await client.count(uri)
    assert shown["method"] == "calibrated"
    await kept(client)
    command = [sys.executable, "-P", "-m", "sidecar", "count", NAME, "--json"]
    process = await asyncio.create_subprocess_exec(*command, cwd=root, stdout=subprocess.PIPE)
    printed, _ = await process.communicate()
    [counted] = json.loads(printed)["files"]
    assert (counted["tokens"], counted["method"]) == (shown["tokens"], "calibrated")
    await client.aclose()


async def kept(client: Client) -> None:
    """Wait until all calibrations have been saved."""
    server = client.server
    await until(lambda: not server.scheduler.is_due(("calibrations",)))


async def test_calibration_of_another_process_is_used_once_it_is_read(root: Path) -> None:
    client = await started(root)
    uri = opened(client, root)
    before = await client.count(uri)
    services = client.server.services
    estimator = services.counts.tokenizers(services.roots.default.settings).for_model(MODEL).name
    other = Calibrations()
    other.update(document_key(MODEL, estimator, kind_of(TEXT)), 10_000, 13_000)
    save_calibrations(services.state.folder, other)
    turns = [{"role": "user", "content": "Hi. " * 40}, {"role": "assistant", "content": "Yes."}]
    for reported in (900, 1000):
        usage = {"prompt_tokens": reported, "completion_tokens": 3}
        params = {"session": "s", "model": "another", "turns": turns, "usage": usage}
        await client.request("context/append", params)
    await kept(client)
    assert 1.2 < (await client.count(uri))["tokens"] / before["tokens"] < 1.4
    counts = await numbers(client, uri)
    assert len(set(counts.values())) == 1, counts
    await client.aclose()


async def test_calibration_of_another_process_is_used_without_own_samples(root: Path) -> None:
    client = await started(root)
    uri = opened(client, root)
    before = (await client.count(uri))["tokens"]
    services = client.server.services
    estimator = services.counts.tokenizers(services.roots.default.settings).for_model(MODEL).name
    key = document_key(MODEL, estimator, kind_of(TEXT))
    other = load_calibrations(services.state.folder)
    for _ in range(3):  # Each write replaces the file.
        other.update(key, 10_000, 13_000)
        save_calibrations(services.state.folder, other)
        await until(lambda: services.calibrations.loaded().learned(key) == other.learned(key))
        counts = await numbers(client, uri)
        assert len(set(counts.values())) == 1, counts
        assert counts["status"] > before * 1.2
    await client.aclose()


async def test_count_is_of_one_version_during_edits(root: Path) -> None:
    client = await started(root)
    uri = opened(client, root)
    await client.count(uri)
    line = {"start": {"line": 2, "character": 0}, "end": {"line": 3, "character": 0}}
    everything = {"start": {"line": 0, "character": 0}, "end": {"line": 9999, "character": 0}}
    models = [MODEL, "gpt-4", "claude-sonnet-4-5", MODEL]
    for number in range(10):
        asking = asyncio.ensure_future(client.count(uri, models=models, ranges=[line, everything]))
        for _ in range(5):
            await asyncio.sleep(0)
            client.change({"text": TEXT + f"line {number}\n" * (number + 1)}, uri=uri)
        answer: Any = await asking
        same = [answer, answer["models"][0], answer["models"][3], answer["ranges"][1]]
        assert len({one["tokens"] for one in same}) == 1
        assert len({one["characters"] for one in (*same, *answer["models"])}) == 1
    await client.aclose()


@pytest.mark.parametrize("operations", [100, pytest.param(3_000, marks=pytest.mark.slow)])
async def test_every_derived_number_equals_a_fresh_derivation(operations: int) -> None:
    await stress(operations, seed=1)
