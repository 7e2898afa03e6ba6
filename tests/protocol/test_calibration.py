"""Checks that only suitable usage reports and endpoint counts affect the calibration."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from sidecar.server.server import create_server
from tests.protocol.client import Client

PROSE = (
    "The committee met on Tuesday to discuss the new plans for the town hall, and everyone agreed "
    "that the roof needs repair. "
)


async def started(root: Path) -> Client:
    client = Client(create_server())
    await client.initialize(
        root.as_uri(),
        ignored=("status/update", "textDocument/publishDiagnostics", "context/warning"),
    )
    return client


def opened(client: Client, root: Path, text: str = PROSE * 20) -> str:
    uri = (root / "document.md").as_uri()
    client.open(text, uri)
    return uri


async def said(client: Client, reported: int, session: str = "s") -> None:
    """Append a reply whose usage reports this number of prompt tokens."""
    reply = {"role": "assistant", "content": "ok"}
    usage = {"input_tokens": reported, "output_tokens": 2}
    params = {"session": session, "turns": [reply], "usage": usage}
    await client.request("context/append", params)


async def ask(client: Client, text: str, session: str = "s") -> None:
    turn = {"role": "user", "content": text}
    await client.request("context/append", {"session": session, "turns": [turn]})


async def test_preflight_for_another_model_keeps_the_calibration(tmp_path: Path) -> None:
    client = await started(tmp_path)
    learned = []
    for session, asks in (("left alone", False), ("tried with others", True)):
        params = {"session": session, "model": f"unheard-of-{asks}"}
        await client.request("context/set", params)
        for turn in range(6):
            await ask(client, PROSE * 6 + str(turn), session)
            if asks:
                other = {"session": session, "model": "gpt-4"}
                await client.request("context/preflight", other)
            await said(client, 2000 + 200 * turn, session)
        usage = await client.request("context/usage", {"session": session})
        learned.append(usage["calibration"])
    assert learned[0]["samples"] == 5
    assert learned[1] == learned[0]
    await client.aclose()


async def test_each_calibration_sample_is_one_line_of_the_debug_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "sidecar")
    client = await started(tmp_path)
    await client.request("context/set", {"session": "s", "model": "unheard-of"})
    for turn in range(4):
        await ask(client, PROSE * 6 + str(turn))
        await said(client, 2000 + 200 * turn)
    usage = await client.request("context/usage", {"session": "s"})
    await client.aclose()
    lines = [text for text in caplog.messages if text.startswith("calibration: ")]
    assert len(lines) == usage["calibration"]["samples"] == 3
    form = (
        r"calibration: estimated=\d+ real=\d+ of a prompt estimated=(\d+) reported=(\d+) "
        r"factor=\d\.\d{3} model=unheard-of"
    )
    prompts = [found.groups() for line in lines if (found := re.fullmatch(form, line))]
    assert [reported for _, reported in prompts] == ["2200", "2400", "2600"], lines
    assert lines[-1].split("factor=")[1].startswith(f"{usage['calibration']['factor']:.3f}")
    assert PROSE[:20] not in caplog.text


async def test_server_closes_even_if_calibrations_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = await started(tmp_path)
    services = client.server.services
    client.server.scheduler.close()
    services.calibrations.changed()
    shutil.rmtree(services.state.folder, ignore_errors=True)
    services.state.folder.write_text("a file where the folder should be")
    await services.aclose()
    assert "cannot write calibrations" in caplog.text
    await client.aclose()


async def test_conversations_do_not_calibrate_documents(tmp_path: Path) -> None:
    client, model = await started(tmp_path), "claude-sonnet-4-5"
    prose = opened(client, tmp_path)
    before = await client.count(prose, model=model)
    rows = (
        '{"id": 18273, "hash": "9f8e7d6c5b4a39281706f5e4d3c2b1a0", "v": [0.12345, 99.871]}\n' * 20
    )
    result = await client.request("tokens/count", {"text": rows, "model": model})
    await client.request("context/set", {"session": "s", "model": model})
    for turn in range(8):
        named = [f"c{turn}{number}" for number in range(6)]
        calls = [{"id": name, "name": "t", "arguments": {}} for name in named]
        turns = [{"role": "assistant", "content": None, "toolCalls": calls}]
        turns += [{"role": "tool", "toolCallId": name, "content": rows} for name in named]
        turns += [{"role": "assistant", "content": PROSE * 2}]
        await client.request("context/append", {"session": "s", "turns": turns})
        await ask(client, PROSE * 2)
        await said(client, 300 + round(1.4 * (turn + 1) * (6 * result["tokens"] + 170)))
    assert await client.count(prose, model=model) == before
    assert await client.request("tokens/count", {"text": rows, "model": model}) == result
    await client.aclose()
