"""Tests that `token-sidecar usage` shows a workspace's saved session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.agents.claude import ClaudeHome
from sidecar.cli import main
from sidecar.conversations.conversation import Conversation, save
from sidecar.conversations.turn_counts import Counter
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.messages.messages import Turn
from sidecar.workspace.state_folder import State


def test_usage_shows_a_saved_session_without_text(tmp_path: Path) -> None:
    counter = Counter("gpt-4o", Tokenizers().for_model("gpt-4o"))
    session = Conversation("chat", counter)
    session.append([Turn(role="user", content="SECRET words")])
    state = State()
    state.save_sessions(tmp_path.as_uri(), [save(session)], {"chat"})
    result = CliRunner().invoke(main, ["usage", "--workspace", str(tmp_path), "--json"])
    usage = json.loads(result.output)
    assert usage["tokens"] == session.total().tokens()
    assert (usage["session"]["id"], usage["limit"]) == ("chat", 128_000)
    kept = b"".join(path.read_bytes() for path in state.folder.rglob("*.jsonl"))
    assert b"SECRET" not in kept
    shown = CliRunner().invoke(main, ["usage", "--workspace", str(tmp_path)]).output
    assert shown.startswith(f"Context     ~{usage['tokens']:,} tokens (")
    assert "0 % of 127,500 usable" in shown
    assert "Updated     just now" in shown


def test_usage_without_sessions_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["usage", "--workspace", str(tmp_path)])
    assert result.exit_code == 0
    assert "No conversation found for this workspace" in result.output


@pytest.mark.parametrize("option", ["--json", "--watch", None])
@pytest.mark.parametrize("has_session", [False, True])
def test_unknown_session_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str | None, has_session: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if has_session:
        ClaudeHome(tmp_path / ".claude").session(tmp_path).reply()
    command = [
        "usage",
        "--workspace",
        str(tmp_path),
        "--session",
        "no such",
        *filter(None, [option]),
    ]
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        "this workspace has no session no such; `token-sidecar usage --all` lists its sessions"
        in result.stderr
    )


def test_unknown_window_has_no_percent_and_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "home" / "app"
    root.mkdir(parents=True)
    monkeypatch.chdir(root)
    session = ClaudeHome(tmp_path / "home" / ".claude").session(root)
    session.model, session.cached = "house-model-7", 15_000
    session.reply()
    usage = json.loads(CliRunner().invoke(main, ["usage", "--json"]).output)
    assert usage["tokens"] > 15_000
    assert (usage.get("limit"), usage.get("percent"), usage["severity"]) == (None, None, "ok")
    assert not usage.get("shouldPrune")
    shown = CliRunner().invoke(main, ["usage"]).output
    assert "%" not in shown.partition("\n")[0]
    assert f"{usage['tokens']:,} tokens" in shown
    line = CliRunner().invoke(main, ["statusline"], input="").output
    assert "%" not in line
    assert f"ctx {usage['tokens']:,}" in line
    (row,) = json.loads(CliRunner().invoke(main, ["usage", "--all", "--json"]).output)
    assert (row["tokens"], row["limit"], row["percent"]) == (usage["tokens"], None, None)


def test_listing_all_sessions_reads_a_bounded_amount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    home = ClaudeHome(tmp_path / ".claude")
    sizes, names = [], []
    for days in (9, 6, 3):
        home.clock.now = datetime.now(UTC) - timedelta(days=days)
        session = home.session(tmp_path)
        session.reply()
        at = home.clock.now.timestamp()
        os.utime(session.path, (at, at))
        sizes.append(session.path.stat().st_size)
        names.append(session.id)
    monkeypatch.setattr("sidecar.cli.usage.READ_SECONDS", 0.0)
    monkeypatch.setattr("sidecar.cli.session_labels.MAX_UNREAD_BYTES", sizes[1])
    command = ["usage", "--workspace", str(tmp_path), "--all"]
    result = CliRunner().invoke(main, [*command, "--json"])
    assert {row["id"] for row in json.loads(result.output)} == set(names[1:])
    shown = CliRunner().invoke(main, command).output
    assert "Older sessions may be missing. Run `token-sidecar cost`" in shown
    CliRunner().invoke(main, ["cost", "--workspace", str(tmp_path)])
    result = CliRunner().invoke(main, [*command, "--json"])
    assert {row["id"] for row in json.loads(result.output)} == set(names)
    assert "may be missing" not in CliRunner().invoke(main, command).output


@pytest.mark.parametrize("verb", [("usage",), ("usage", "--all"), ("cost", "files")])
def test_broken_configuration_is_reported(verb: tuple[str, ...], tmp_path: Path) -> None:
    """The command reports the problem and still prints its result."""
    (tmp_path / ".token-sidecar.toml").write_text("model = 5\n")
    result = CliRunner().invoke(main, [*verb, "--workspace", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith("token-sidecar: ")
    assert "model" in result.stderr
    assert result.stdout.startswith("No ")


def hear_interrupts() -> None:
    """Make a subprocess react to SIGINT even if the tests run as a background job."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGINT to a process alone")
@pytest.mark.parametrize("used", [True, False], ids=["watched", "waited for"])
def test_watching_ends_quietly_at_ctrl_c(used: bool, tmp_path: Path) -> None:
    if used:
        ClaudeHome(tmp_path / ".claude").session(tmp_path).reply()
    variables = os.environ | {"HOME": str(tmp_path), "TOKEN_SIDECAR_STATE": str(tmp_path / "state")}
    variables.pop("CLAUDE_CONFIG_DIR", None)
    command = [sys.executable, "-P", "-m", "sidecar", "usage", "--watch", "--workspace"]
    with subprocess.Popen(
        [*command, str(tmp_path)],
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=hear_interrupts,
    ) as process:
        assert process.stdout
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (130, "")
