"""`token-sidecar doctor`: it names engines, values with their places, and mistakes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from click.testing import CliRunner

from sidecar.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def test_says_where_a_value_came_from(tmp_path: Path) -> None:
    (tmp_path / ".token-sidecar.toml").write_text('\nmodel = "gpt-4"\n')
    done = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    values = {value["key"]: value["from"] for value in report["configuration"]["values"]}
    assert values["model"] == f"{tmp_path / '.token-sidecar.toml'}:2"
    assert all(entry["ok"] for entry in report["vocabularies"])
    assert {entry["name"] for entry in report["vocabularies"]} >= {"o200k_base", "cl100k_base"}


def test_a_mistake_is_shown_and_is_exit_2(tmp_path: Path) -> None:
    (tmp_path / ".token-sidecar.toml").write_text("model = 5\n")
    done = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path)])
    assert done.exit_code == 2
    assert ".token-sidecar.toml:1: model" in done.output


def test_an_endpoint_that_is_down_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "user-config.toml").write_text(
        'model = "qwen-tiny"\n[tokenize]\nuse-endpoint = true\n'
        '[[endpoint]]\nurl = "http://127.0.0.1:9"\nmodels = ["qwen-*"]\n'
    )
    done = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path), "--json"])
    (row,) = json.loads(done.output)["endpoints"]["capabilities"]
    assert (row["model"], row["text"], row["limit"]) == ("qwen-tiny", "unreachable", None)
