"""Tests that installing hooks changes only what it shows, and that uninstalling restores it."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.config.paths import config_file, state_dir
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostRecordParams
from sidecar.hooks.installer import (
    HookChange,
    codex_hash,
    hook_agents,
    hook_file,
    is_installed,
)

AGENTS = tuple(hook_agents())
OTHER = {"hooks": [{"type": "command", "command": "say done"}]}
SETTINGS = (
    "",
    "\n",
    "{}",
    "{ }\n",
    '{"hooks": {}}',
    '{\r\n  "model": "x",\r\n  "hooks": {\r\n  }\r\n}\r\n',
    '{\n\t"hooks": {\n\t\t"Stop": []\n\t}\n}\n',
    json.dumps({"hooks": {"UserPromptSubmit": [OTHER, OTHER], "BeforeAgent": [OTHER]}}),
    json.dumps(
        {"a": [1], "hooks": {"Stop": [OTHER], "AfterAgent": [OTHER]}, "é": "\ud800"}, indent=4
    ),
    '{\n  // mine\n  "hooks": {\n    "Stop": [ // and this\n    ]\n  }\n}',
)
TOML = (
    "",
    'model = "x"',
    '# mine\nmodel = "x"\n\n[[hooks]]\nevent = "Stop"\ncommand = "say done"\n',
)


def contents(name: str) -> tuple[str, ...]:
    form = hook_agents()[name].form
    return SETTINGS if form == "settings" else TOML if form == "toml" else ()


CASES = [(name, text) for name in AGENTS for text in (None, *contents(name))]


def tree() -> dict[str, bytes | None]:
    """Return all files and folders in the home folder."""
    paths = Path.home().rglob("*")
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "PI_CODING_AGENT_DIR"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(("name", "text"), CASES)
def test_uninstalling_restores_every_byte(name: str, text: str | None) -> None:
    path = hook_file(name)
    if text is not None:
        path.parent.mkdir(parents=True)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        path.chmod(0o640)
    before = tree()
    HookChange(name, installs=True).apply()
    assert is_installed(name)
    assert not HookChange(name, installs=True).is_needed()
    if text is not None:
        assert path.stat().st_mode & 0o777 == 0o640
    HookChange(name, installs=False).apply()
    assert tree() == before


@pytest.mark.parametrize("name", [name for name in AGENTS if hook_agents()[name].before])
def test_the_file_has_both_hooks(name: str) -> None:
    HookChange(name, installs=True).apply()
    agent, text = hook_agents()[name], hook_file(name).read_text()
    commands = {}
    if agent.form == "toml":
        hooks = tomllib.loads(text)["hooks"]
        commands = {hook["event"]: hook["command"] for hook in hooks}
        assert {hook["timeout"] for hook in hooks} == {agent.timeout}
    elif agent.form == "own-json":
        found = json.loads(text)["hooks"]
        commands = {event: hooks[0]["bash"] for event, hooks in found.items()}
    else:
        found = json.loads(text)["hooks"]
        commands = {event: hooks[0]["hooks"][0]["command"] for event, hooks in found.items()}
    assert set(commands) == {agent.before, agent.after}
    assert commands[agent.before].endswith(f"hooks --answer {name}")
    assert commands[agent.after] == f"{commands[agent.before]} --after-turn"
    assert os.path.isabs(commands[agent.before].split()[0])


@pytest.mark.parametrize("name", ["claude-code", "gemini-cli"])
def test_hooks_are_removed_from_a_file_that_the_agent_has_rewritten(name: str) -> None:
    path, agent = hook_file(name), hook_agents()[name]
    path.parent.mkdir(parents=True)
    before: dict[str, Any] = {"hooks": {agent.before: [OTHER]}, "model": "x"}
    path.write_text(json.dumps(before))
    HookChange(name, installs=True).apply()
    now = json.loads(path.read_text()) | {"theme": "dark"}
    now["hooks"][agent.before].append(OTHER)
    path.write_text(json.dumps(now, indent=4, sort_keys=True))
    HookChange(name, installs=False).apply()
    assert json.loads(path.read_text()) == {
        "hooks": {agent.before: [OTHER, OTHER]}, "model": "x", "theme": "dark"
    }  # fmt: skip
    assert not is_installed(name)


def test_tables_after_rewritten_hooks_stay() -> None:
    path = hook_file("kimi-code")
    path.parent.mkdir(parents=True)
    HookChange("kimi-code", installs=True).apply()
    own = tomllib.loads(path.read_text())["hooks"]
    hooks = [own[0], {"event": "Stop", "command": "say"}, own[1]]
    tables = (
        "".join(f"  {key} = {value!r}\n" for key, value in sorted(hook.items())) for hook in hooks
    )
    rest = "\n# My models.\n[a]\nb = 1"
    path.write_text("".join(f"[[hooks]]\n{table}" for table in tables) + rest)
    HookChange("kimi-code", installs=False).apply()
    assert tomllib.loads(path.read_text()) == {"hooks": [hooks[1]], "a": {"b": 1}}
    assert path.read_text().endswith(rest)


def test_what_others_added_since_stays() -> None:
    path = hook_file("kimi-code")
    path.parent.mkdir(parents=True)
    path.write_text('model = "x"\n')
    HookChange("kimi-code", installs=True).apply()
    path.write_text(
        path.read_text() + '\n[[hooks]]\nevent = "Stop"\ncommand = "say"\n\n[a]\nb = 1\n'
    )
    HookChange("kimi-code", installs=False).apply()
    hooks = [{"event": "Stop", "command": "say"}]
    assert tomllib.loads(path.read_text()) == {"model": "x", "hooks": hooks, "a": {"b": 1}}


def test_the_text_of_the_users_file_is_not_stored() -> None:
    path = hook_file("claude-code")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"env": {"KEY": "sk-secret"}, "hooks": {"Stop": [OTHER]}, "z": 1}))
    HookChange("claude-code", installs=True).apply()
    stored = b"".join(file.read_bytes() for file in state_dir().iterdir())
    assert b"token-sidecar hooks --answer claude-code" in stored
    assert not any(word in stored for word in (b"sk-secret", b"say done", b'"z"'))


@pytest.mark.parametrize("text", ["[]", '{"hooks": []}', '{"hooks": {"Stop": 3}}', "{"])
def test_a_file_that_is_not_understood_is_not_changed(text: str) -> None:
    path = hook_file("claude-code")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    result = CliRunner().invoke(main, ["hooks", "--install", "claude-code", "--yes"])
    assert result.exit_code == 1
    assert "cannot be edited" in result.output
    assert path.read_text() == text


def test_the_change_is_shown_before_it_is_made() -> None:
    shown = CliRunner().invoke(main, ["hooks", "--install", "codex"])
    assert shown.exit_code == 1
    assert '+    "UserPromptSubmit": [' in shown.output
    assert "add --yes" in shown.output
    assert not hook_file("codex").exists()
    done = CliRunner().invoke(main, ["hooks", "--install", "codex", "--yes"])
    assert done.exit_code == 0
    assert "open `/hooks`" in done.output
    assert "No caps are set" in done.output
    again = CliRunner().invoke(main, ["hooks", "--install", "codex", "--yes"])
    assert "Nothing to do: the hooks are installed already in codex." in again.output


def run_hooks(*options: str) -> Result:
    return CliRunner().invoke(main, ["hooks", *options])


def test_installed_hooks_are_tried() -> None:
    config_file().write_text("[cost]\nhard-cap-usd = 5\n")
    CostBook(state_dir()).record(CostRecordParams(model="gpt-5", usage={"input_tokens": 1}))
    for name in ("kimi-code", "pi"):
        HookChange(name, installs=True).apply()
    result = run_hooks("--json")
    assert result.exit_code == 0
    shown = json.loads(result.output)
    assert [each["agent"] for each in shown["agents"]] == list(AGENTS)
    found = {each["agent"]: each["problem"] for each in shown["agents"] if each["installed"]}
    assert found == {"kimi-code": "", "pi": ""}
    text = run_hooks().output
    assert "claude-code  not installed" in text
    assert "kimi-code    installed, answers in" in text


def test_hooks_that_do_not_work_are_reported() -> None:
    config_file().write_text("[cost]\nhard-cap-usd = 5\n")
    HookChange("pi", installs=True).apply()
    result = run_hooks()
    assert result.exit_code == 1
    assert "so prompts pass: no calls have been recorded yet; `token-sidecar cost`" in result.output
    (state_dir() / "ledger.db").write_bytes(b"damaged" * 100)
    assert f"so prompts pass: {state_dir() / 'ledger.db'}: file is not" in run_hooks().output
    config_file().write_text("[cost]\nhard-cap-usd = = 5\n")
    for output in (run_hooks().output, run_hooks("--install", "codex", "--yes").output):
        assert f"so prompts pass: {config_file()}: Invalid value" in output
        assert "No caps are set" not in output
    run_hooks("--uninstall", "codex", "--yes")
    config_file().write_text("")
    assert "No caps are set" in run_hooks().output
    path = hook_file("pi")
    path.write_text(path.read_text().replace("token-sidecar", "other/token-sidecar"))
    outdated = "outdated; run `token-sidecar hooks --install pi`"
    assert outdated in run_hooks().output
    (row,) = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).output)["hooks"]
    assert row == {"agent": "pi", "file": str(path), "problem": outdated}


def test_doctor_says_if_codex_does_not_trust_the_hooks() -> None:
    untrusted = "not trusted; open `/hooks` in Codex"
    HookChange("codex", installs=True).apply()
    assert untrusted in CliRunner().invoke(main, ["doctor"]).output
    path = hook_file("codex")
    lines = []
    for event, key in (("UserPromptSubmit", "user_prompt_submit"), ("Stop", "stop")):
        (group,) = json.loads(path.read_text())["hooks"][event]
        lines += [f'[hooks.state."{path}:{key}:0:0"]']
        lines += [f'trusted_hash = "{codex_hash(event, group["hooks"][0])}"']
    path.with_name("config.toml").write_text("\n".join(lines))
    output = CliRunner().invoke(main, ["doctor"]).output
    assert str(path) in output
    assert untrusted not in output
    path.with_name("config.toml").write_text("\n".join(lines).replace("sha256:", "sha256:0"))
    assert untrusted in CliRunner().invoke(main, ["doctor"]).output


def test_a_hook_has_the_hash_that_codex_computes() -> None:
    """`codex app-server` of Codex 0.171 returned this hash as the hook's `currentHash`."""
    command = "/opt/venv/bin/token-sidecar hooks --answer codex"
    hook = {"type": "command", "command": command, "timeout": 5}
    begin = "sha256:3f8545c389111c3878a46372eff3d5ae25a93866673ea1f1a69a73a967c9c5bf"
    assert codex_hash("UserPromptSubmit", hook) == begin
