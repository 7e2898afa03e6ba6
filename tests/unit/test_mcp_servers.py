"""Tests which MCP servers agents start, what their tools add, and how they are measured."""

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
import msgspec
import pytest

from sidecar.agents.folders import Places
from sidecar.cli.footprint import measure_mcp_servers
from sidecar.config.paths import state_dir
from sidecar.config.settings import Agents, Settings
from sidecar.counting.count_result import Measure
from sidecar.known_agents import all_agents
from sidecar.operating_system import is_alive
from sidecar.project.mcp_servers import (
    KeptCount,
    KeptServer,
    McpServer,
    Tool,
    ToolList,
    count_tools_in_each_form,
    find_mcp_servers,
    form_key,
    keep,
    list_servers,
    mcp_rules,
    read_kept,
    sent_text,
    sent_tools,
)
from tests.cases import read_rows
from tests.unit.test_cli_statusline import hear_interrupts

ENTRY = {"command": "crates", "args": ["--all"], "env": {"TOKEN": "secret"}}
TOOLS = ToolList(
    (
        Tool("open", "Opens a crate.\nCarefully.", {"type": "object", "properties": {}}),
        Tool("shut", "Shuts a crate.", {"type": "object", "properties": {"n": {"minimum": 1}}}),
    ),
    first_page=1,
    instructions="All about crates.\nAsk first.",
)


@pytest.fixture
def start(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / "project"
    folder.mkdir(parents=True)
    return folder


def places_of(start: Path, **env: str) -> Places:
    return Places.of(Agents(), {"HOME": str(start.parent), "USERPROFILE": str(start.parent), **env})


def write(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return path


def server_of(agent: str, **changes: Any) -> McpServer:
    server = McpServer(agent=agent, name="box", path="x", is_own=True, command=("crates",))
    return msgspec.structs.replace(server, **changes)


def test_rules_name_known_agents_and_end_with_a_form_for_every_model() -> None:
    for agent, rules in mcp_rules().items():
        assert agent in all_agents()
        last = rules.forms[-1]
        assert (last.models, last.entry, last.variables) == ((), {}, {}), agent
        assert all(form.line for form in rules.forms if form.sends == "lines"), agent


def test_every_spelling_of_an_entry_is_read(start: Path) -> None:
    home = start.parent
    table = (
        '[mcp_servers.crates]\ncommand = "crates"\nargs = ["--all"]\nenv = { TOKEN = "secret" }\n'
    )
    named = '[[mcp_servers]]\nname = "crates"\ncommand = ["crates", "--all"]\n'
    local = {"type": "local", "command": ["crates", "--all"], "environment": {"TOKEN": "secret"}}
    write(home / ".claude.json", {"mcpServers": {"crates": ENTRY}})
    write(home / ".codex/config.toml", table)
    write(
        home / ".config/opencode/opencode.jsonc", f'{{"mcp": {{"crates": {json.dumps(local)},}}}}'
    )
    write(home / ".vibe/config.toml", named + 'env = { TOKEN = "secret" }\n')
    write(
        home / ".qwen/settings.json", {"mcpServers": {"crates": {"httpUrl": "https://a.example"}}}
    )
    found = {
        agent: find_mcp_servers(agent, start, places_of(start))
        for agent in ("claude-code", "codex", "opencode", "vibe", "qwen-code")
    }
    assert [found["qwen-code"][0].url, found["qwen-code"][0].command] == ["https://a.example", ()]
    same = [found[agent][0] for agent in ("claude-code", "codex", "opencode", "vibe")]
    assert {server.command for server in same} == {("crates", "--all")}
    assert len({server.digest for server in same}) == 1


def test_a_later_file_replaces_a_server_and_can_switch_it_off(start: Path) -> None:
    write(start.parent / ".claude.json", {
        "mcpServers": {"crates": ENTRY, "other": ENTRY},
        "projects": {str(start): {"mcpServers": {"mine": ENTRY}}, "/elsewhere": {"mcpServers": {"no": ENTRY}}},
    })  # fmt: skip
    write(start / ".mcp.json", {"mcpServers": {"crates": ENTRY | {"disabled": True}}})
    found = find_mcp_servers("claude-code", start, places_of(start))
    assert [(server.name, server.is_own) for server in found] == [("other", True), ("mine", True)]


def test_an_agents_variable_moves_its_file(start: Path, tmp_path: Path) -> None:
    write(start.parent / ".codex/config.toml", '[mcp_servers.old]\ncommand = "old"\n')
    write(tmp_path / "codex/config.toml", '[mcp_servers.new]\ncommand = "new"\n')
    found = find_mcp_servers("codex", start, places_of(start, CODEX_HOME=str(tmp_path / "codex")))
    assert [server.name for server in found] == ["new"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"mcpServers": 3}',
        '{"mcpServers": {"a": 3, "b": {"command": 7, "args": {}, "env": [1]}, "c": {"command": []}}}',
        '{"mcpServers": {"a": {"command": null, "url": {"a": 1}}}}',
        '{"mcpServers": ' + '{"a":' * 5000,
        '{"mcpServers": {"a": {"args": ["x"]}}}',
        "\x00\xff",
    ],
)
def test_a_broken_file_names_no_server(start: Path, text: str) -> None:
    write(start / ".mcp.json", text)
    write(start / ".codex/config.toml", text)
    for agent in mcp_rules():
        assert find_mcp_servers(agent, start, places_of(start)) == []
    assert list_servers(start / ".mcp.json", text, start, places_of(start)) == []


def test_a_project_cannot_name_a_file_outside(start: Path, tmp_path: Path) -> None:
    outside = write(tmp_path / "outside.json", {"mcpServers": {"crates": ENTRY}})
    (start / ".mcp.json").symlink_to(outside)
    assert find_mcp_servers("claude-code", start, places_of(start)) == []


def test_only_the_first_servers_of_a_huge_file_are_read(start: Path) -> None:
    many = {f"s{number}": {"command": "x"} for number in range(20_000)}
    write(start / ".mcp.json", {"mcpServers": many})
    assert len(find_mcp_servers("claude-code", start, places_of(start))) == 200


@pytest.mark.parametrize(("agent", "form", "expected"), read_rows("mcp", "tool_forms"))
def test_each_agent_sends_the_tools_in_its_form(agent: str, form: int, expected: str) -> None:
    assert sent_text(server_of(agent), TOOLS, mcp_rules()[agent].forms[form]) == expected


def test_schemas_are_changed_as_the_agent_changes_them() -> None:
    copilot = sent_text(server_of("copilot-cli"), TOOLS, mcp_rules()["copilot-cli"].forms[0])
    assert '"n":{"description":"{minimum: 1}"}' in copilot
    codex = sent_text(server_of("codex"), TOOLS, mcp_rules()["codex"].forms[1])
    assert codex.startswith(
        '{"type":"namespace","name":"mcp__box","description":"All about crates.'
    )
    assert '"n":{}' in codex
    opencode = sent_text(server_of("opencode"), TOOLS, mcp_rules()["opencode"].forms[0])
    assert opencode.count('"additionalProperties":false') == 2


def test_long_texts_are_cut_with_the_agents_mark() -> None:
    tools = ToolList((Tool("open", "x" * 5000, {}),), 1, "y" * 5000)
    text = sent_text(server_of("claude-code"), tools, mcp_rules()["claude-code"].forms[0])
    assert "x" * 4096 + "… [truncated]" in text
    assert text.endswith("y" * 4096 + "… [truncated]")


def test_tools_that_the_configuration_leaves_out_are_not_sent(start: Path) -> None:
    write(start.parent / ".gemini/settings.json", {
        "mcpServers": {"a": ENTRY | {"includeTools": ["open"]}, "b": ENTRY | {"excludeTools": ["open"]}}
    })  # fmt: skip
    write(
        start.parent / ".copilot/mcp-config.json", {"mcpServers": {"a": ENTRY | {"tools": ["*"]}}}
    )
    both = msgspec.structs.replace(TOOLS, first_page=2)
    form = mcp_rules()["gemini-cli"].forms[0]
    only, without = find_mcp_servers("gemini-cli", start, places_of(start))
    assert '"mcp_a_open"' in sent_text(only, both, form)
    assert '"mcp_a_shut"' not in sent_text(only, both, form)
    assert '"mcp_b_open"' not in sent_text(without, both, form)
    (every,) = find_mcp_servers("copilot-cli", start, places_of(start))
    assert every.only == ()


def test_a_server_cannot_change_the_form_of_its_text() -> None:
    tools = ToolList((Tool("{description}", "{tools}{server}", {}),), 1, "{tools}")
    text = sent_text(server_of("qwen-code", name="{instructions}"), tools, mcp_rules()["qwen-code"].forms[0])  # fmt: skip
    assert (
        text
        == '#### {instructions}\n- "mcp__{instructions}__{description}": "{tools}{server}"\n### {instructions}\n{tools}'
    )


@pytest.mark.parametrize(
    ("agent", "model", "env", "options", "sends"), read_rows("mcp", "form_conditions")
)
def test_the_form_depends_on_model_entry_and_environment(
    agent: str, model: str, env: dict[str, str], options: dict[str, Any], sends: str
) -> None:
    sent = sent_tools(server_of(agent, options=options), model, {}, env)
    assert sent.sends == sends
    assert sent.tokens == (0 if sends == "nothing" else None)


def count_characters(text: str, _model: str) -> Measure:
    return Measure(len(text), "exact", "characters")


def test_kept_numbers_are_those_of_each_agents_form(tmp_path: Path) -> None:
    server = server_of("claude-code", env={"TOKEN": "secret"})
    counts = count_tools_in_each_form(
        [server], TOOLS, ("gpt-5", "claude-sonnet-5"), count_characters
    )
    kept = KeptServer(tools=2, measured_at="2026-11-29T12:00:00+00:00", counts=counts)
    keep(tmp_path, {server.digest: kept})
    for agent, rules in mcp_rules().items():
        for model in ("gpt-6.2-sol", "gpt-5", "claude-sonnet-5"):
            entry = server_of(agent, env={"TOKEN": "secret"})
            sent = sent_tools(entry, model, read_kept(tmp_path), {})
            form = next(form for form in rules.forms if form.applies(entry, model, {}))
            assert sent.tokens == len(sent_text(entry, TOOLS, form)), agent
            assert sent.tools == 2
            is_estimated = model == "gpt-6.2-sol" and sent.sends != "nothing"
            assert sent.method == ("estimate" if is_estimated else "exact")


def test_kept_numbers_contain_no_text(tmp_path: Path) -> None:
    server = server_of("codex", env={"TOKEN": "secret"}, command=("crates", "--key", "sesame"))
    counts = count_tools_in_each_form([server], TOOLS, ("gpt-5",), count_characters)
    keep(tmp_path, {server.digest: KeptServer(tools=2, measured_at="2026", counts=counts)})
    (file,) = tmp_path.glob("mcp-tools.json")
    text = file.read_text("utf-8")
    for secret in ("secret", "sesame", "TOKEN", "crates", "box", "open", "Opens"):
        assert secret not in text
    if sys.platform != "win32":
        assert os.stat(file).st_mode & 0o077 == 0


def test_other_arguments_are_another_server() -> None:
    first = server_of("codex", command=("crates", "a"))
    assert first.digest == server_of("gemini-cli", name="other", command=("crates", "a")).digest
    assert first.digest != server_of("codex", command=("crates", "b")).digest
    assert first.digest != server_of("codex", command=("crates", "a"), env={"A": "1"}).digest


def test_a_changed_filter_has_no_number_until_it_is_measured(tmp_path: Path) -> None:
    server = server_of("codex")
    counts = count_tools_in_each_form([server], TOOLS, ("gpt-5",), count_characters)
    kept = {server.digest: KeptServer(tools=2, measured_at="2026", counts=counts)}
    sent = sent_tools(server_of("codex", only=("open",)), "gpt-5", kept, {})
    assert (sent.tools, sent.tokens) == (2, None)


def test_the_oldest_numbers_are_dropped(tmp_path: Path) -> None:
    form = mcp_rules()["codex"].forms[0]
    counts = {form_key(server_of("codex"), form): {"o200k_base": KeptCount(1, "exact")}}
    many = {
        f"{number:032}": KeptServer(tools=1, measured_at=f"2026-{number:04}", counts=counts)
        for number in range(600)
    }
    keep(tmp_path, many)
    assert sorted(read_kept(tmp_path)) == sorted(many)[100:]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": {"tools": "x"}}', '{"a": 1}'])
def test_a_broken_file_of_numbers_is_ignored(tmp_path: Path, text: str) -> None:
    write(tmp_path / "mcp-tools.json", text)
    assert read_kept(tmp_path) == {}


def test_entries_of_an_open_file_have_lines(start: Path) -> None:
    text = '{\n  // mine\n  "mcpServers": {\n    "a": {"command": "x"},\n    "b": {\n "url": "u"}\n}\n}'
    listed = list_servers(start / ".mcp.json", text, start, places_of(start))
    assert [(one.server.agent, one.server.name, one.line) for one in listed] == [
        ("claude-code", "a", 3), ("claude-code", "b", 4),
        ("kimi-code", "a", 3), ("kimi-code", "b", 4),
        ("copilot-cli", "a", 3), ("copilot-cli", "b", 4),
    ]  # fmt: skip
    text = 'model = "x"\n[mcp_servers.a]\ncommand = "x"\n\n[mcp_servers."b.c"]\ncommand = "y"\n'
    listed = list_servers(start / ".codex/config.toml", text, start, places_of(start))
    assert [(one.server.name, one.line) for one in listed] == [("a", 1), ("b.c", 4)]


def test_huge_files_are_listed_in_linear_time_or_not_at_all(
    start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = {f"s{number}": {"command": "x"} for number in range(20_000)}
    text = json.dumps({"mcpServers": many}, indent=1)
    listed = list_servers(start / ".mcp.json", text, start, places_of(start))
    assert [one.line for one in listed[:3]] == [2, 5, 8]
    assert len(listed) == 3 * 200
    parsed = []
    monkeypatch.setattr("sidecar.project.mcp_servers._parse", lambda *_, **__: parsed.append(1))
    assert list_servers(start / ".mcp.json", text * 10, start, places_of(start)) == []
    assert parsed == []


def test_other_files_have_no_entries(start: Path) -> None:
    text = json.dumps({"mcpServers": {"crates": ENTRY}})
    for name in ("package.json", "sub/.mcp.json", ".cursor/mcp.json"):
        assert list_servers(start / name, text, start, places_of(start)) == []


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
        "from sidecar.cli.footprint import measure_mcp_servers;"
        "from sidecar.config.settings import Agents, Settings; start = Path.cwd();"
        "places = Places.of(Agents(), {'HOME': str(start.parent)});"
        "measure_mcp_servers(start, places, Settings(), ['claude-code'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=start,
        env=environment,
        stderr=subprocess.PIPE,
        preexec_fn=hear_interrupts,
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
