"""Tests which MCP servers agents start, and what their tools add to requests."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sidecar.agents.folders import Places
from sidecar.config.settings import Agents
from sidecar.counting.count_result import Measure
from sidecar.known_agents import all_agents
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
