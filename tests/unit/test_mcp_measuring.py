"""Tests that real MCP servers are started only with consent, measured and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest

from sidecar.agents.folders import Places
from sidecar.cli.mcp_measuring import measure_mcp_servers
from sidecar.config.paths import state_dir
from sidecar.config.settings import Agents, Settings
from sidecar.operating_system import is_alive
from sidecar.project.mcp_servers import McpServer, find_mcp_servers, read_kept, sent_tools

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.mcp_tool_server"


def entry(*arguments: str, **changes: Any) -> dict[str, Any]:
    command = {"command": sys.executable, "args": ["-m", MODULE, *arguments]}
    return {**command, "env": {"PYTHONPATH": str(ROOT)}, **changes}


def server(*arguments: str, **changes: Any) -> McpServer:
    given: dict[str, Any] = {
        "agent": "claude-code",
        "name": "crates",
        "path": "x",
        "is_own": True,
        "command": (sys.executable, "-m", MODULE, *arguments),
        "env": {"PYTHONPATH": str(ROOT)},
    }
    return McpServer(**given | changes)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home" / "project"
    folder.mkdir(parents=True)
    return folder


def places_of(start: Path) -> Places:
    home = str(start.parent)
    return Places.of(Agents(), {"HOME": home, "USERPROFILE": home})


def write_own(start: Path, **servers: dict[str, Any]) -> None:
    (start.parent / ".claude.json").write_text(json.dumps({"mcpServers": servers}))


def write_project(start: Path, **servers: dict[str, Any]) -> None:
    (start / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))


def measure(start: Path) -> int:
    return measure_mcp_servers(start, places_of(start), Settings(), ["claude-code"])


def wait_for_end(process: int) -> None:
    deadline = time.monotonic() + 20
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(process)


def test_the_tools_of_the_users_own_server_are_counted_and_kept(
    start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_own(start, crates=entry("25", "pids"))
    assert measure(start) == 0
    assert "crates: 25 tools" in capsys.readouterr().err
    (found,) = find_mcp_servers("claude-code", start, places_of(start))
    sent = sent_tools(found, "claude-sonnet-5", read_kept(state_dir()), {})
    assert sent.tools == 25
    assert sent.tokens is not None
    assert 25 * 8 < sent.tokens < 25 * 25  # a line per tool
    # The server ran in the home folder, and not in the project's, whose programs it might run.
    own, child, folder = (start.parent / "pids").read_text().split(" ", 2)
    assert Path(folder) == start.parent
    for process in (int(own), int(child)):
        wait_for_end(process)


def test_a_projects_server_is_not_started_without_a_terminal(
    start: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    write_project(start, crates=entry("3", str(start / "pids")))
    assert measure(start) == 1
    assert not (start / "pids").exists()
    assert "crates was not started" in capsys.readouterr().err
    assert read_kept(state_dir()) == {}


class Terminal:
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_projects_server_is_started_after_its_command_was_confirmed(
    start: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_confirmed: bool,
) -> None:
    asked = []

    def confirm(text: str, **_: Any) -> bool:
        asked.append(capsys.readouterr().err + text)
        return is_confirmed

    monkeypatch.setattr(click, "confirm", confirm)
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setenv("OWN_SECRET", "sesame")
    write_project(start, **{"crates\x1b[2J": entry("3", str(start / "pids"))})
    assert measure(start) == (0 if is_confirmed else 1)
    assert len(asked) == 1
    assert f"PYTHONPATH={ROOT}" in asked[0]
    assert f"-m {MODULE} 3 {start / 'pids'}" in asked[0]
    assert "\x1b" not in asked[0]
    assert (start / "pids").exists() == is_confirmed


def test_a_server_that_the_user_has_too_needs_no_confirmation(
    start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_own(start, mine=entry("3"))
    write_project(start, theirs=entry("3"))
    assert measure(start) == 0
    assert capsys.readouterr().err.endswith("\nmine: 3 tools\n")


def test_a_projects_server_gets_no_variables_but_its_own(
    start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sidecar.mcp.tool_lists import list_tools

    code = (
        "import json, os, pathlib, runpy, sys;"
        "pathlib.Path('seen').write_text(json.dumps([sys.argv, dict(os.environ)]));"
        f"sys.argv = ['x', '1']; runpy.run_module('{MODULE}', run_name='__main__')"
    )
    command = (sys.executable, "-c", code, "${OWN_SECRET:-none}", "${PATH}")
    variables = {**os.environ, "OWN_SECRET": "sesame"}
    for is_own in (False, True):
        env = {"PYTHONPATH": "${HERE:-" + str(ROOT) + "}", "COPY": "${env:OWN_SECRET}"}
        list_tools(server(command=command, env=env, is_own=is_own), start, variables)
        arguments, seen = json.loads((start / "seen").read_text())
        assert arguments[1:] == ["sesame" if is_own else "none", os.environ["PATH"]]
        assert seen["COPY"] == ("sesame" if is_own else "")
        assert ("OWN_SECRET" in seen) == is_own


@pytest.mark.parametrize("is_own", [False, True])
def test_a_projects_remote_server_gets_no_variables(start: Path, *, is_own: bool) -> None:
    from sidecar.mcp.tool_lists import ToolListError, list_tools

    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append((self.path, self.headers["X-Key"], self.headers["X-User"]))
            self.send_error(500)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        changes = {
            "command": (),
            "url": f"http://127.0.0.1:{listening.server_port}/mcp/${{OWN_SECRET}}",
            "headers": {"X-Key": "<{env:OWN_SECRET}>", "X-User": "${HOME:-nobody}"},
            "is_own": is_own,
        }
        with pytest.raises(ToolListError):
            list_tools(server(**changes), start, {"OWN_SECRET": "sesame", "HOME": "/home/me"}, 20)
        listening.shutdown()
    expected = ("/mcp/sesame", "<sesame>", "/home/me")
    assert set(seen) == {expected if is_own else ("/mcp/", "<>", "nobody")}


def test_the_confirmation_names_headers_and_the_folder(
    start: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(text: str, **_: Any) -> bool:
        asked.append(capsys.readouterr().err + text)
        return False

    monkeypatch.setattr(click, "confirm", refuse)
    monkeypatch.setattr("sys.stdin", Terminal())
    headers = {"Authorization": "Bearer ${OWN_SECRET}"}
    remote = {"type": "http", "url": "https://crates.example/mcp", "headers": headers}
    write_project(start, remote=remote, local={"command": "crates", "cwd": "tools/\x1b[2J"})
    assert measure(start) == 1
    asked_remote, asked_local = (text.splitlines()[-4:] for text in asked)
    assert asked_remote[1:] == [
        "  https://crates.example/mcp",
        "  with the header Authorization",
        "Ask it for its tools?",
    ]
    assert asked_remote[0].endswith(
        ".mcp.json is part of the project. It reaches remote at this address:"
    )
    assert asked_local[1:] == ["  crates", "  in the folder tools/\\x1b[2J", "Start it?"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"command": ("no-such-program-anywhere",)}, "does not exist"),
        ({"folder": "no-such-folder"}, "does not exist"),
        ({"command": (sys.executable, "-c", "print('hello')")}, "did not list its tools"),
        ({"command": (sys.executable, "-c", "raise SystemExit(3)")}, "did not list its tools"),
        ({"command": (), "url": "http://127.0.0.1:9/mcp"}, "did not list its tools"),
        ({"command": (), "url": "file:///etc/passwd"}, "did not list its tools"),
        ({"command": (sys.executable, "a\x00b")}, "did not list its tools"),
    ],
)
def test_a_server_that_cannot_be_asked_is_an_error_without_its_text(
    start: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], message: str
) -> None:
    from sidecar.mcp.tool_lists import ToolListError, list_tools

    with pytest.raises(ToolListError, match=message) as error:
        list_tools(server(**changes), start, os.environ, seconds=20)
    assert "hello" not in f"{error.value}{caplog.text}"


def test_a_server_that_hangs_is_stopped_with_its_children(start: Path) -> None:
    from sidecar.mcp.tool_lists import ToolListError, list_tools

    with pytest.raises(ToolListError, match="within 5 seconds"):
        list_tools(server("-1", "pids"), start, os.environ, seconds=5)
    for process in (start / "pids").read_text().split(" ", 2)[:2]:
        wait_for_end(int(process))


def test_one_server_that_fails_does_not_stop_the_others(
    start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_own(start, broken={"command": "no-such-program-anywhere"}, crates=entry("2"))
    assert measure(start) == 1
    shown = capsys.readouterr()
    assert "broken: its program or working folder does not exist" in shown.err
    assert shown.err.endswith("\ncrates: 2 tools\n")


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_stops_the_server_with_its_children(start: Path) -> None:
    write_own(start, crates=entry("-1", "pids"))
    code = (
        "from pathlib import Path; from sidecar.agents.folders import Places;"
        "from sidecar.cli.mcp_measuring import measure_mcp_servers;"
        "from sidecar.config.settings import Agents, Settings; start = Path.cwd();"
        "places = Places.of(Agents(), {'HOME': str(start.parent)});"
        "measure_mcp_servers(start, places, Settings(), ['claude-code'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(
        [sys.executable, "-c", code], cwd=start, env=environment, stderr=subprocess.PIPE
    )
    pids = start.parent / "pids"
    deadline = time.monotonic() + 60
    while not (pids.exists() and pids.read_text().count(" ") > 1):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode != 0
    for process in pids.read_text().split(" ", 2)[:2]:
        wait_for_end(int(process))


def test_without_the_sdk_the_message_says_how_to_install_it(
    start: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.client.client", None)
    monkeypatch.delitem(sys.modules, "sidecar.mcp.tool_lists", raising=False)
    write_own(start, crates=entry("2"))
    assert measure(start) == 2
    assert "'.[mcp]'" in capsys.readouterr().err


def test_without_servers_nothing_is_done(start: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure(start) == 0
    assert capsys.readouterr().err.startswith("No MCP servers are configured")


def test_footprint_measures_before_it_reports(start: Path) -> None:
    """The home folder of the tests is empty, so nothing but the project names a server."""
    from click.testing import CliRunner

    from sidecar.cli import main

    (start / "AGENTS.md").write_text("Be brief.\n")
    write_project(start, crates=entry("3", str(start / "pids")))
    shown = CliRunner().invoke(main, ["footprint", str(start), "--measure-mcp", "--json"])
    assert shown.exit_code == 1
    assert "crates was not started" in shown.stderr
    assert json.loads(shown.stdout)["folder"] == start.as_uri()
    assert not (start / "pids").exists()


def footprint_of(start: Path, agent: str, *options: str) -> dict[str, Any]:
    from click.testing import CliRunner

    from sidecar.cli import main

    command = ["footprint", str(start), "--agent", agent, "--json", *options]
    shown = CliRunner().invoke(main, command)
    assert shown.exit_code == 0, shown.stderr
    (found,) = json.loads(shown.stdout)["agents"]
    return {part["label"]: part for part in found["parts"]} | {"": found}


def test_a_footprint_has_a_part_for_each_server(
    start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(start.parent))
    monkeypatch.setenv("USERPROFILE", str(start.parent))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    write_own(start, crates=entry("12"))
    (start / "AGENTS.md").write_text("Be brief.\n")
    (start / ".mcp.json").write_text(json.dumps({"mcpServers": {"other": {"command": "other"}}}))
    crates, other = (f"MCP server {name}" for name in ("crates", "other"))
    before = footprint_of(start, "claude-code")
    assert [before[crates]["tokens"], before[other]["tokens"]] == [None, None]
    unknown = "name only: not measured; `token-sidecar footprint --measure-mcp` counts its tools"
    assert before[crates]["stateText"] == unknown
    assert before[other]["stateText"] == f"{unknown}, with `-p`, or once you have approved it"
    assert [before[crates]["isOwn"], before[other]["isOwn"]] == [True, False]
    assert before[""]["isLowerBound"]
    assert measure(start) == 1  # the project's server is not started
    after = footprint_of(start, "claude-code")
    assert after[crates]["state"] == "name-only"
    assert after[crates]["stateText"] == "name only: 12 tools, a line per tool"
    assert after[crates]["tokens"] > 12 * 8
    assert after[other]["tokens"] is None
    assert after[""]["tokens"] - before[""]["tokens"] == after[crates]["tokens"]


def test_agents_that_send_whole_schemas_have_larger_parts(
    start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(start.parent))
    monkeypatch.setenv("USERPROFILE", str(start.parent))
    servers = {"mcpServers": {"crates": entry("9")}}
    for name in (".claude.json", ".gemini/settings.json", ".copilot/mcp-config.json"):
        path = start.parent / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(servers))
    assert measure(start) == 0
    found = [
        footprint_of(start, agent)["MCP server crates"]
        for agent in ("claude-code", "copilot-cli", "gemini-cli")
    ]
    assert [part["state"] for part in found] == ["name-only", "sent", "sent"]
    lines, copilot, gemini = (part["tokens"] for part in found)
    assert 5 * lines < copilot < gemini
    shared = footprint_of(start, "gemini-cli")["Tools and headings for MCP servers"]
    assert [shared["tokens"], shared["method"]] == [32, "estimate"]
