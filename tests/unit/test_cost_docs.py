"""Tests that the examples in the cost docs have the documented results."""

from __future__ import annotations

import json
import re
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sidecar.config.load import load
from sidecar.config.paths import config_file
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostDetailParams, CostRecordParams

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "cost.md").read_text(encoding="utf-8")
HOW_TO = (DOCS / "how-to" / "cost-reports.md").read_text(encoding="utf-8")
BLOCK = re.compile(
    r"^<!-- (request (?P<method>\S+)|result) -->\n```json\n(?P<body>.*?)^```", re.M | re.S
)
TOML = re.compile(r"^```toml\n(.*?)^```", re.M | re.S)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set this process's time zone to UTC, which the examples use."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_examples_give_the_documented_results(tmp_path: Path) -> None:
    book, answer, compared = CostBook(tmp_path / "state"), None, 0
    for block in BLOCK.finditer(REFERENCE):
        body: Any = json.loads(block["body"])
        if block["method"] == "cost/record":
            answer = msgspec.to_builtins(book.record(msgspec.convert(body, CostRecordParams)))
        elif block["method"] == "cost/detail":
            answer = msgspec.to_builtins(book.detail(msgspec.convert(body, CostDetailParams)))
        else:
            assert answer is not None
            assert {key: answer[key] for key in body} == body
            compared += 1
    book.close()
    assert compared == 3


@pytest.mark.parametrize("toml", TOML.findall(REFERENCE + HOW_TO))
def test_the_configurations_are_valid(toml: str) -> None:
    config_file().write_text(toml)
    assert tomllib.loads(toml)
    assert load(None).problems == ()
