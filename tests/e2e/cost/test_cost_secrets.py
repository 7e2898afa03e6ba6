"""Tests that the ledger, the cost page, the export and the log contain no message text."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sidecar.cli.cost import cost
from sidecar.config.paths import state_dir
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostRecordParams

SECRETS = ("sk-ant-PLANTED", "Dear-diary-PLANTED", "Bearer-PLANTED")


@pytest.fixture
def book() -> CostBook:
    """Create a ledger from complete replies, which contain keys and message text."""
    key, text, header = SECRETS
    book = CostBook(state_dir())
    replies: tuple[dict[str, Any], ...] = (
        {
            "usage": {"prompt_tokens": 10, "completion_tokens": 2, "note": text},
            "choices": [{"message": {"content": text}}],
            "headers": {"authorization": header},
            "service_tier": "default",
        },
        {
            "type": "message",
            "content": [{"type": "text", "text": text}],
            "api_key": key,
            "usage": {
                "input_tokens": 3,
                "output_tokens": 4,
                "cache_creation": {text: 5},
                "service_tier": {"name": key},
            },
        },
        {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 1}, "candidates": [text]},
    )
    for number, reply in enumerate(replies):
        book.record(
            CostRecordParams(model="gpt-5", usage=reply, request_id=str(number), session="s")
        )
    wrong: tuple[dict[str, Any], ...] = (
        {"text": text},
        {"prompt_tokens": text},
        {"usage": {"input_tokens": key}},
    )
    for bad in wrong:
        with pytest.raises(ValueError, match=r"usage") as failure:
            book.record(CostRecordParams(model="gpt-5", usage=bad))
        assert not any(secret in str(failure.value) for secret in SECRETS)
    return book


def test_a_search_for_planted_secrets_finds_nothing(
    book: CostBook, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    page = tmp_path / "page.html"
    shown = [CliRunner().invoke(cost, ["--html", str(page)])]
    shown += [CliRunner().invoke(cost, arguments) for arguments in ([], ["--json"], ["export"])]
    assert [result.exit_code for result in shown] == [0, 0, 0, 0]
    files = [page, *(file for file in state_dir().rglob("*") if file.is_file())]
    assert {file.name for file in files} >= {"page.html", "ledger.db", "ledger.db-wal"}
    everything = b"".join(file.read_bytes() for file in files)
    everything += "".join(result.output for result in shown).encode() + caplog.text.encode()
    assert b"gpt-5" in everything, "the search looks where the ledger writes"
    for secret in (*SECRETS, "PLANTED"):
        assert secret.encode() not in everything
    book.close()
