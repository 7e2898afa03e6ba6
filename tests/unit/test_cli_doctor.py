"""Tests the engines, settings, sources and problems that `token-sidecar doctor` shows."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.agents.claude import ClaudeHome
from sidecar.cli import main
from sidecar.cli.doctor import _EXTRAS
from sidecar.config.paths import config_file, state_dir
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostRecordParams
from sidecar.errors import how_to_install


def test_doctor_shows_the_source_of_a_value(tmp_path: Path) -> None:
    (tmp_path / ".token-sidecar.toml").write_text('\nmodel = "gpt-4"\n')
    result = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    values = {value["key"]: value["from"] for value in report["configuration"]["values"]}
    assert values["model"] == f"{tmp_path / '.token-sidecar.toml'}:2"
    assert all(entry["ok"] for entry in report["vocabularies"])
    assert {entry["name"] for entry in report["vocabularies"]} >= {"o200k_base", "cl100k_base"}


def test_doctor_shows_problems_and_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / ".token-sidecar.toml").write_text("model = 5\n")
    result = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path)])
    assert result.exit_code == 2
    assert ".token-sidecar.toml:1:9: model" in result.output


def test_warnings_are_listed_again_and_exit_with_0(tmp_path: Path) -> None:
    (tmp_path / ".token-sidecar.toml").write_text("[team]\n")
    result = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path), "--json"])
    assert result.exit_code == 0
    configuration = json.loads(result.output)["configuration"]
    assert configuration["warnings"] == configuration["problems"]
    assert "team: ignored, because " in configuration["warnings"][0]


@pytest.mark.parametrize("extra", sorted(_EXTRAS))
def test_doctor_says_how_to_install_each_missing_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, extra: str
) -> None:
    monkeypatch.setitem(_EXTRAS, extra, "no-such-package")
    result = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path)])
    assert f"not installed; {how_to_install(extra)}\n" in result.output
    assert f"token-sidecar[{extra}]" not in result.output


def test_unreachable_endpoint_is_reported(tmp_path: Path) -> None:
    (tmp_path / "user-config.toml").write_text(
        'model = "qwen-tiny"\n[tokenize]\nuse-endpoint = true\n'
        '[[endpoint]]\nurl = "http://127.0.0.1:9"\nmodels = ["qwen-*"]\n'
    )
    result = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path), "--json"])
    (row,) = json.loads(result.output)["endpoints"]["capabilities"]
    assert (row["model"], row["text"], row["limit"]) == ("qwen-tiny", "unreachable", None)


def test_an_unreachable_team_store_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    config_file().write_text(f'[team]\nstore = "{url}"\n')
    result = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path)])
    assert result.exit_code == 0, result.output
    _, _, shown = result.output.partition("Team store")
    assert f"the team's store {url} cannot be reached (ConnectError); check [team] store" in shown
    result = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path), "--json"])
    assert json.loads(result.output)["teamStore"]["url"] == url


def test_agents_are_listed_with_skipped_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    session = ClaudeHome(tmp_path / ".claude").session(tmp_path)
    session.reply()
    with session.path.open("a") as file:
        file.write('{"usage" broken\n')
    result = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path), "--json"])
    (row,) = json.loads(result.output)["agents"]
    assert (row["agent"], row["stores"], row["calls"], row["skipped"]) == ("claude-code", 1, 1, 1)
    shown = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path)])
    assert re.search(r"newest file written 20[\d-]+, 1 call in it, 1 line not", shown.output)


def test_agents_that_are_disabled_or_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ClaudeHome(tmp_path / ".claude").session(tmp_path).reply()
    (tmp_path / "config.toml").write_text('[agents]\nenabled = false\nsources = ["codx"]\n')
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(tmp_path / "config.toml"))
    result = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path), "--json"])
    report = json.loads(result.output)
    assert report["agents"] == []
    (problem,) = report["configuration"]["problems"]
    assert "agents.sources: has unknown agents at position 1; did you mean codex?" in problem


def test_missing_user_file_is_reported_with_the_command_to_create_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(tmp_path / "new" / "config.toml"))
    arguments = ["doctor", "--workspace", str(tmp_path)]
    assert "config.toml (missing; `token-sidecar config init --user` creates it)" in (
        CliRunner().invoke(main, arguments).output
    )
    assert CliRunner().invoke(main, ["config", "init", "--user"]).exit_code == 0
    assert "(missing; " not in CliRunner().invoke(main, arguments).output


def configured(tmp_path: Path, text: str) -> list[str]:
    """Return the lines about endpoints that `doctor` prints for a user configuration."""
    (tmp_path / "user-config.toml").write_text(text)
    shown = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path)]).output
    return shown.split("\nEndpoints ")[1].split("\n\nAgents")[0].splitlines()


def test_model_without_an_endpoint_is_reported(tmp_path: Path) -> None:
    endpoint = '[[endpoint]]\nurl = "http://127.0.0.1:9"\nmodels = ["qwen*"]\n'
    lines = configured(tmp_path, f'model = "llama3"\n[tokenize]\nuse-endpoint = true\n{endpoint}')
    assert lines[2] == (
        "    no endpoint is configured for llama3: choose a model that one of your servers has, "
        "or add this model to an [[endpoint]] in your own configuration"
    )


def test_invalid_endpoint_is_not_reported_as_missing(tmp_path: Path) -> None:
    lines = configured(tmp_path, '[[endpoint]]\nurl = "127.0.0.1:9"\n')
    assert lines[1] == "  No usable endpoint; see the problems below."


def test_an_endpoint_for_the_window_alone(tmp_path: Path) -> None:
    endpoint = '[[endpoint]]\nurl = "http://127.0.0.1:9/api"\nmodels = ["qwen*"]\n'
    lines = configured(tmp_path, f'model = "qwen3"\n[tokenize]\nendpoint-window = true\n{endpoint}')
    assert lines[0] == "(used for context windows only)"
    assert "start the server or correct its url" in lines[-1], "what it was asked for failed"


@pytest.mark.parametrize("broken", ["folder", "ledger"])
def test_unusable_state_folder_is_not_a_configuration_error(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "kept"
    if broken == "folder":
        place.write_text("a file")
    else:
        place.mkdir()
        (place / "ledger.db").write_text("no database at all, and long enough to be read as one")
    monkeypatch.setenv("TOKEN_SIDECAR_STATE", str(place))
    told = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path)])
    assert told.exit_code == 0
    assert f"  problem: the ledger {place / 'ledger.db'} " in told.output
    result = CliRunner().invoke(main, ["doctor", "--workspace", str(tmp_path), "--json"])
    assert "ledger.db" in json.loads(result.output)["configuration"]["stateProblem"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no read-only folders")
@pytest.mark.parametrize("name", ["", "ledger.db"])
def test_read_only_state_is_a_problem(name: str, tmp_path: Path) -> None:
    CostBook(state_dir()).record(CostRecordParams(model="gpt-5", usage={"prompt_tokens": 1}))
    path = state_dir() / name
    path.chmod(0o500)
    prefix = list[str]()
    if os.access(path, os.W_OK):  # root, which needs a capability to write here
        drop = "-dac_override"
        prefix = ["setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}"]
    command = ["doctor", "--workspace", str(tmp_path), "--json"]
    result = subprocess.run(
        [*prefix, sys.executable, "-P", "-m", "sidecar", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    path.chmod(0o700)
    assert f"{path} is read-only" in json.loads(result.stdout)["configuration"]["stateProblem"]


def test_every_extra_is_named() -> None:
    file = Path(__file__).parents[2] / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) - {"test"} == set(_EXTRAS)
