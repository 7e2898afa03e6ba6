"""Tests `mcp --install` and the edits that it makes to clients' JSON files."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sidecar.cli import main
from sidecar.config.edited_files import own_command
from sidecar.errors import BadParamsError, SidecarError
from sidecar.mcp.clients import (
    EditFile,
    RunCommand,
    clients,
    clients_with_server,
    plan_install,
    plan_uninstall,
)
from sidecar.text.json_objects import NotAnObjectError, remove_member, set_member

SERVER = {"type": "stdio", "command": "token-sidecar", "args": ["mcp"]}
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_objects = st.dictionaries(st.text(), _values, max_size=4)
COMMENTED = """{
  // my servers
  "servers": {
    "other": { "command": "x", /* keep */ "args": [] }, // and this
  },
  "inputs": []
}
"""


@given(_objects, st.dictionaries(st.text(), _values, max_size=3), st.sampled_from([None, 2, "\t"]))
def test_only_the_member_changes(rest: dict[str, Any], group: dict[str, Any], indent: Any) -> None:
    before = {**rest, "servers": {k: v for k, v in group.items() if k != "token-sidecar"}}
    text = json.dumps(before, indent=indent, ensure_ascii=False)
    added = set_member(text, "servers", "token-sidecar", SERVER)
    assert json.loads(added) == {
        **before,
        "servers": {**before["servers"], "token-sidecar": SERVER},
    }
    assert set_member(added, "servers", "token-sidecar", SERVER) == added
    removed = json.loads(remove_member(added, "servers", "token-sidecar"))
    if before["servers"]:
        assert removed == before
    else:
        assert removed == {key: value for key, value in before.items() if key != "servers"}


def test_comments_and_formatting_stay() -> None:
    added = set_member(COMMENTED, "servers", "token-sidecar", SERVER)
    assert "// my servers" in added
    assert "/* keep */" in added
    assert "// and this" in added
    plain = re.sub(r",(\s*[}\]])", r"\1", re.sub(r"//[^\n]*|/\*.*?\*/", "", added))
    assert json.loads(plain)["servers"]["token-sidecar"] == SERVER
    assert remove_member(added, "servers", "token-sidecar") == COMMENTED


def test_commas_in_comments_stay() -> None:
    text = '{"servers": {"a": 1 /* x, y */, "token-sidecar": 2 /* x, y */, "b": 3 /* x, y */}}'
    assert _without_comments(remove_member(text, "servers", "token-sidecar")) == {"a": 1, "b": 3}
    assert _without_comments(remove_member(text, "servers", "b")) == {"a": 1, "token-sidecar": 2}


def _without_comments(text: str) -> Any:
    return json.loads(re.sub(r"/\*.*?\*/", "", text))["servers"]


@pytest.mark.parametrize("text", ["[]", '{"servers": 3}', '{"servers": {', "{", '{"a" 1}'])
def test_text_that_is_not_an_object_is_rejected(text: str) -> None:
    with pytest.raises(NotAnObjectError):
        set_member(text, "servers", "token-sidecar", SERVER)


def test_member_is_added_to_an_empty_file() -> None:
    assert json.loads(set_member("", "mcp", "token-sidecar", 1)) == {"mcp": {"token-sidecar": 1}}


def test_concurrent_edits_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("{}")
    edits = [EditFile(path, f"group{number}", SERVER) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(EditFile.apply, edits))
    assert len(json.loads(path.read_text())) == 8


def test_broken_file_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "opencode.json"
    path.write_text('{"mcp": ')
    with pytest.raises(SidecarError, match="cannot be edited"):
        EditFile(path, "mcp", SERVER).apply()
    assert path.read_text() == '{"mcp": '


@pytest.mark.parametrize("client", clients())
def test_each_client_can_be_undone(client: Any, tmp_path: Path) -> None:
    added = plan_install(client, "user", tmp_path)
    removed = plan_uninstall(client, "user", tmp_path)
    if isinstance(added, RunCommand):
        # If the command is not on PATH, its absolute path is used.
        assert any("token-sidecar" in part for part in added.command)
    if isinstance(removed, RunCommand):
        assert removed.command[-1] == "token-sidecar"


@pytest.mark.parametrize("client", ["codex", "cline", "copilot"])
def test_some_clients_have_no_project_scope(client: Any, tmp_path: Path) -> None:
    for plan in (plan_install, plan_uninstall):
        with pytest.raises(BadParamsError, match="use --scope user"):
            plan(client, "project", tmp_path)


@pytest.mark.parametrize(
    ("client", "scope", "variable", "file", "group"),
    [
        ("kimi", "user", "", ".kimi-code/mcp.json", "mcpServers"),
        ("kimi", "user", "KIMI_CODE_HOME", "elsewhere/mcp.json", "mcpServers"),
        ("kimi", "project", "", "project/.kimi-code/mcp.json", "mcpServers"),
        ("kilo", "project", "", "project/kilo.json", "mcp"),
        ("opencode", "project", "", "project/opencode.json", "mcp"),
    ],
)
def test_edited_files_are_those_that_the_client_reads(
    client: Any, scope: Any, variable: str, file: str, group: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KIMI_CODE_HOME", raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    folder = tmp_path / "project"
    added = plan_install(client, scope, folder)
    assert isinstance(added, EditFile)
    added.apply()
    assert "token-sidecar" in json.loads((tmp_path / file).read_text())[group]
    assert clients_with_server(folder) == [(client, tmp_path / file)]
    plan_uninstall(client, scope, folder).apply()
    assert not (tmp_path / file).exists()
    assert clients_with_server(folder) == []


ORIGINALS = [
    None,
    "",
    "\n",
    "{}",
    "{ }\n",
    '{"servers": {}}',
    '{\n\t"inputs": [],\n\t"servers": {},\n}\n',
    "{\n  // none yet\n}\n",
    COMMENTED,
]


@pytest.mark.parametrize("original", ORIGINALS)
def test_uninstalling_restores_the_file(original: str | None, tmp_path: Path) -> None:
    path = tmp_path / ".vscode/mcp.json"
    if original is not None:
        path.parent.mkdir()
        path.write_text(original)
    for _ in range(2):
        plan_install("vscode", "project", tmp_path).apply()
        EditFile(path, "servers", SERVER | {"command": "moved"}).apply()  # installed again
        plan_uninstall("vscode", "project", tmp_path).apply()
        assert (path.read_text() if path.exists() else None) == original
    assert path.parent.exists() == (original is not None)


def test_what_others_added_after_the_installation_stays(tmp_path: Path) -> None:
    path = tmp_path / ".vscode/mcp.json"
    plan_install("vscode", "project", tmp_path).apply()
    path.write_text(set_member(path.read_text(), "servers", "other", {}))
    plan_uninstall("vscode", "project", tmp_path).apply()
    assert json.loads(path.read_text()) == {"servers": {"other": {}}}
    path.unlink()
    plan_install("vscode", "project", tmp_path).apply()
    path.write_text(path.read_text().replace("{", "{ // mine", 1))
    (tmp_path / ".vscode/settings.json").touch()
    plan_uninstall("vscode", "project", tmp_path).apply()
    assert path.read_text().startswith("{ // mine")


@pytest.mark.parametrize("holder", ["kilo.json", "kilo.jsonc", ".kilo/kilo.json"])
def test_the_file_with_the_server_is_edited_among_several(holder: str, tmp_path: Path) -> None:
    (tmp_path / ".kilo").mkdir()
    for name in ("kilo.json", "kilo.jsonc", ".kilo/kilo.json"):
        (tmp_path / name).write_text('{"model": "a/b"}')
    (tmp_path / holder).write_text('{"mcp": {"token-sidecar": {"type": "local"}}}')
    removed = plan_uninstall("kilo", "project", tmp_path)
    assert isinstance(removed, EditFile)
    assert removed.path == tmp_path / holder
    removed.apply()
    assert json.loads((tmp_path / holder).read_text()) == {}


def test_the_command_is_absolute_if_it_is_not_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (program,) = own_command()
    assert program.startswith("/")
    assert program.endswith("/token-sidecar")


def test_vscode_in_a_project_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    asked = run(main, ["mcp", "--install", "vscode", "--scope", "project"])
    assert asked.exit_code == 1
    assert "cannot ask for confirmation without a terminal; add --yes" in asked.output
    assert not (tmp_path / ".vscode").exists()
    result = run(main, ["mcp", "--install", "vscode", "--scope", "project", "--yes"])
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / ".vscode/mcp.json").read_text())
    assert written["servers"]["token-sidecar"]["args"][-1] == "mcp"
    assert clients_with_server(tmp_path) == [("vscode", tmp_path / ".vscode/mcp.json")]
    assert "--uninstall vscode --scope project" in result.output
    gone = run(main, ["mcp", "--uninstall", "vscode", "--scope", "project", "--yes"])
    assert gone.exit_code == 0, gone.output
    assert not (tmp_path / ".vscode").exists()
    again = run(main, ["mcp", "--uninstall", "vscode", "--scope", "project", "--yes"])
    assert (again.exit_code, again.output) == (
        0,
        "Nothing to do: the server is not installed for vscode (project).\n",
    )


def test_error_names_the_missing_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(main, ["mcp", "--install", "gemini", "--yes"])
    assert result.exit_code == 1
    assert "gemini is not on PATH; install it first" in result.output
    assert "This will" not in result.output
