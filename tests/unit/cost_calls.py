"""Creates calls for a ledger, and locks it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostRecordParams
from sidecar.cost.ledger_events import PROTOCOL, Buckets, LedgerEvent


def call_of(agent: str = PROTOCOL, *, tokens: int = 1_000, **fields: Any) -> LedgerEvent:
    """Return a call of gpt-5 by an agent, with uncached input tokens only, or with these fields."""
    return LedgerEvent(
        **{
            "at": datetime(2026, 11, 20, tzinfo=UTC),
            "model": "gpt-5",
            "provider": "openai",
            "buckets": Buckets(input=tokens),
            "agent": agent,
            **fields,
        }
    )


def report_call(book: CostBook, prompt: int = 1_000, output: int = 1, **fields: Any) -> None:
    """Record a call of gpt-5 as a client reports it, or with these fields."""
    usage = {"prompt_tokens": prompt, "completion_tokens": output}
    book.record(CostRecordParams(**{"model": "gpt-5", "usage": usage, **fields}))


def price_list_of(**models: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a list like genai-prices' with the vendor `house`. Prices are per million tokens."""
    entries = [
        {"id": name, "match": {"equals": name}, "prices": prices} for name, prices in models.items()
    ]
    pattern = r"https://house\.example"
    return [{"id": "house", "name": "House", "api_pattern": pattern, "models": entries}]


def store_price_list(file: Path, model: str, window: int, price: int) -> None:
    """Write a price list of one model of OpenAI's, as another process does after a download."""
    (provider,) = price_list_of(**{model: {"input_mtok": price}})
    provider |= {"id": "openai", "name": "OpenAI"}
    provider["models"][0]["context_window"] = window
    file.parent.mkdir(exist_ok=True)
    written = file.with_suffix(".new")
    written.write_text(json.dumps([provider]))
    written.replace(file)


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(database: Path) -> Iterator[None]:
    """Lock a database in another process."""
    database.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", HOLD, str(database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
        holder.kill()
