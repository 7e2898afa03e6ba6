"""Tests the JSON schema, and the reference page that is generated from it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from sidecar.server.methods import NOTIFICATIONS, REQUESTS, json_schema, reference_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "protocol.md"


def test_the_reference_page_is_up_to_date() -> None:
    hint = "run: token-sidecar schema --markdown > docs/reference/protocol.md"
    assert PAGE.read_text("utf-8").strip() == reference_page().strip(), hint


def test_every_message_is_in_the_schema_and_resolves() -> None:
    document = json_schema()
    assert set(document["requests"]) == set(REQUESTS)
    assert set(document["notifications"]) == set(NOTIFICATIONS)
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split('"#/$defs/')[1:]}
    assert names <= set(document["$defs"])


def test_command_prints_the_schema() -> None:
    result = subprocess.run(
        [sys.executable, "-P", "-m", "sidecar", "schema"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(result.stdout) == json.loads(json.dumps(json_schema()))
