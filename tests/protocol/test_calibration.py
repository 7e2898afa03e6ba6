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


async def test_hidden_prompts_do_not_affect_document_counts(tmp_path: Path) -> None:
    """Most of the reported tokens belong to a system prompt that the client has not reported."""
    client, model = await started(tmp_path), "claude-sonnet-4-5"
    uri = opened(client, tmp_path)
    before = await client.count(uri, model=model)
    visible = await client.request("tokens/count", {"text": PROSE * 8, "model": model})
    for number in range(6):
        session = f"s{number}"
        await client.request("context/set", {"session": session, "model": model})
        await ask(client, PROSE * 8, session)
        await said(client, round(visible["tokens"] * 1.9), session)
    assert await client.count(uri, model=model) == before
    await client.aclose()
