"""Tests `token-sidecar statusline` and `usage`, and the agents' sessions in `cost files`."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.agents import claude
from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.codex import CodexHome
from benchmarks.agents.truth import Tokens
from sidecar.agents.claude_statusline import FILE_NAME, StatuslineInput, load, read_input, save
from sidecar.agents.reader_registry import reader_of
from sidecar.cli import main
from sidecar.config.paths import config_file, state_dir
from sidecar.config.safe_files import lock_state
from sidecar.conversations.conversation import Conversation
from sidecar.conversations.conversation import save as save_conversation
from sidecar.conversations.turn_counts import Counter
from sidecar.cost import ledger
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.messages.messages import Turn
from sidecar.models import catalogue
from sidecar.text.printable import cost_text
from sidecar.workspace.agent_sessions import NOT_KEPT
from sidecar.workspace.state_folder import State
from tests.cases import read_rows
from tests.file_opens import recorded_opens
from tests.truth import truth

WORDS = "what the user wrote"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "home" / "work" / "app"
    made.mkdir(parents=True)
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def home(tmp_path: Path) -> ClaudeHome:
    made = ClaudeHome(tmp_path / "home" / ".claude")
    now = datetime.now().astimezone()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)  # all calls were made today
    made.clock.now = max(now - timedelta(minutes=50), midnight).astimezone(UTC)
    return made


def run(*arguments: str, told: Any = "") -> str:
    text = told if isinstance(told, str) else json.dumps(told)
    result = CliRunner().invoke(main, arguments, input=text)
    assert result.exit_code == 0, result.output
    return result.stdout.rstrip("\n")


def later(**span: float) -> int:
    """Return a time in the future (or in the past, if negative), in seconds since 1970."""
    return int((datetime.now(UTC) + timedelta(**span)).timestamp())


def without_times(line: str) -> str:
    """Replace the times at which limits reset, which may be on another day."""
    return re.sub(r"resets (\d\d [A-Z][a-z]+ )?\d\d:\d\d", "resets T", line)


def told(session: str, **fields: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 5_000,
        "output_tokens": 1_000,
        "cache_creation_input_tokens": 20_000,
        "cache_read_input_tokens": 400_000,
    }
    window = {"context_window_size": 1_000_000, "used_percentage": 42.6, "current_usage": usage}
    return {
        "session_id": session,
        "transcript_path": WORDS,
        "model": {"id": "claude-opus-5", "display_name": "Opus 5"},
        "workspace": {"current_dir": ".", "project_dir": "."},
        "cost": {"total_cost_usd": 1.9219},
        "context_window": {**window, "total_input_tokens": 99_999_999},
        "rate_limits": {
            "five_hour": {"used_percentage": 23.5, "resets_at": later(hours=2)},
            "seven_day": {"used_percentage": 41, "resets_at": later(days=3)},
        },
        **fields,
    }


def test_line_from_the_input_of_claude_code() -> None:
    line = without_times(run("statusline", told=told("s")))
    limits = "5h 23 %, resets T · 7d 41 %, resets T"
    assert line == f"Opus 5 · ctx 42 % · $1.92 by Claude Code · {limits}"


@pytest.mark.parametrize(
    "window", [None, {"context_window_size": 200_000, "current_usage": None}, {}]
)
def test_unknown_size_is_not_guessed(window: Any) -> None:
    line = run("statusline", told=told("s", context_window=window, rate_limits=None))
    assert line == "Opus 5 · ctx ? · $1.92 by Claude Code"


@pytest.mark.parametrize(("window", "shown"), read_rows("statusline", "percentages_alone"))
def test_a_percentage_alone_is_shown_as_an_estimate(window: Any, shown: str) -> None:
    """Some versions of Claude Code send a rounded percentage, but no token count."""
    line = run("statusline", told=told("s", context_window=window, rate_limits=None))
    assert line == f"Opus 5 · ctx {shown} · $1.92 by Claude Code"


def test_only_window_and_limits_are_stored(root: Path, home: ClaudeHome) -> None:
    session = home.session(root)
    session.reply()
    before = json.loads(run("usage", "--json"))
    assert (before["tokens"], before["session"]["id"]) == (
        home.truth.context[session.id],
        session.id,
    )
    sent = told(session.id)
    run("statusline", told=sent)
    after = json.loads(run("usage", "--json"))
    assert (after["tokens"], after["limit"], after["limitSource"]) == (
        before["tokens"],
        1_000_000,
        "transcript",
    )
    data = (state_dir() / FILE_NAME).read_bytes()
    assert WORDS.encode() not in data
    kept = json.loads(data)
    assert kept["sessions"][session.id]["used_percentage"] == 42.6
    assert kept["rate_limits"]["five_hour"]["used_percentage"] == 23.5
    written = (state_dir() / FILE_NAME).stat().st_mtime_ns
    run("statusline", told=sent)
    assert (state_dir() / FILE_NAME).stat().st_mtime_ns == written


def test_concurrent_status_lines_keep_each_others_windows(tmp_path: Path) -> None:
    def parsed(session: str) -> StatuslineInput:
        found = read_input(json.dumps(told(session)).encode())
        assert found is not None
        return found

    other = Thread(target=save, args=(tmp_path, parsed("other")))
    with lock_state(tmp_path):
        other.start()
        other.join(0.2)  # without the lock, the other process would write the file now
        assert not load(tmp_path).sessions
    save(tmp_path, parsed("own"))
    other.join()
    assert load(tmp_path).sessions.keys() == {"own", "other"}


@pytest.mark.parametrize("broken", ["{", "[]", "{}", "\xff", '{"context_window": {}}', "null"])
def test_line_of_a_broken_input_is_empty(root: Path, home: ClaudeHome, broken: str) -> None:
    home.session(root).reply()
    assert run("statusline", told=broken) == "", "not the folder's session"
    stderr = CliRunner().invoke(main, ["statusline"], input=broken).stderr
    assert "the input names no session of Claude Code" in stderr


def test_without_input_the_current_session_is_shown(root: Path, home: ClaudeHome) -> None:
    assert run("statusline") == ""
    session = home.session(root)
    session.reply()
    line = run("statusline")
    assert line.startswith(f"{session.model} · ctx ")
    assert " % · $0." in line


def test_another_status_line_is_chained(tmp_path: Path) -> None:
    script = tmp_path / "line.py"
    script.write_text(
        "import json, sys; print('\\x1b[32m' + json.load(sys.stdin)['session_id'] + '\\x1b[0m\\x1b[2J')"
    )
    line = run("statusline", "--chain", f'"{sys.executable}" "{script}"', told=told("mine"))
    chained = "\x1b[32mmine\x1b[0m\\x1b[2J · Opus 5 · ctx 42 % · $1.92 by Claude Code · 5h 23 %, "
    assert line.startswith(chained)
    assert run("statusline", "--chain", "exit 3", told=told("mine")).startswith("Opus 5 ")


@pytest.mark.skipif(os.name == "nt", reason="Windows does not delete the current folder")
def test_a_deleted_folder_does_not_fail(root: Path) -> None:
    """A worktree can be removed while Claude Code is still running in it."""
    root.rmdir()
    assert run("statusline", told=told("mine")).startswith("Opus 5 ")
    assert run("statusline") == ""
    result = CliRunner().invoke(main, ["usage"])
    assert (result.exit_code, "was deleted" in result.output) == (2, True)


def test_usage_lists_every_session_however_old(root: Path, home: ClaudeHome) -> None:
    home.clock.now -= timedelta(days=40)
    old = home.session(root)
    old.reply()
    home.clock.now = datetime.now(UTC) - timedelta(minutes=50)
    new = home.session(root)
    new.reply()
    rows = json.loads(run("usage", "--all", "--json"))
    assert [(row["id"], row["tokens"], row["state"]) for row in rows] == [
        (new.id, home.truth.context[new.id], rows[0]["state"]),
        (old.id, home.truth.context[old.id], "ended"),
    ]
    assert old.id[:8] in run("usage", "--all")
    assert json.loads(run("usage", "--json"))["session"]["id"] == new.id


def test_subfolder_belongs_to_the_project(
    root: Path, home: ClaudeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands use the nearest parent folder that contains `.git` or a configuration."""
    (root / ".git").mkdir()
    session = home.session(root)
    session.reply()
    below = root / "src" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert json.loads(run("usage", "--json"))["session"]["id"] == session.id
    assert [row["id"] for row in json.loads(run("usage", "--all", "--json"))] == [session.id]
    assert "ctx" in run("statusline")
    (root / "CLAUDE.md").write_text("Be kind.\n")
    assert "CLAUDE.md: " in run("cost", "files")


def test_session_is_found_by_the_start_of_its_id(root: Path, home: ClaudeHome) -> None:
    ids = ["c386aaaa-1", "c386bbbb-2", "c386"]
    for number, name in enumerate(ids):
        home.clock.now = datetime.now(UTC) - timedelta(minutes=50) - timedelta(days=40 * number)
        session = home.session(root)
        session.id = name
        home.truth.context[name] = None
        session.reply()
    for asked, name in (
        ("c386a", ids[0]),
        ("c386bbbb-2", ids[1]),
        ("c386b", ids[1]),
        ("c386", "c386"),
    ):
        data = json.loads(run("usage", "--session", asked, "--json"))
        assert (data["session"]["id"], data["tokens"]) == (name, home.truth.context[name])
    result = CliRunner().invoke(main, ["usage", "--session", "d"])
    assert result.exit_code == 2
    assert "this workspace has no session d;" in result.output
    result = CliRunner().invoke(main, ["usage", "--session", "c38"])
    assert result.exit_code == 2
    assert "3 sessions begin with c38: c386, c386aaaa-1, c386bbbb-2" in result.output


def test_bars_are_ascii_where_the_console_has_no_blocks(root: Path, home: ClaudeHome) -> None:
    session = home.session(root)
    session.reply()
    for command in (["usage"], ["usage", "--all"]):
        shown = CliRunner(charset="ascii").invoke(main, command).output
        assert "\\u" not in shown
        assert shown.startswith(("Context", "*  main - "))


def test_usage_prints_the_view_of_editors(root: Path, home: ClaudeHome) -> None:
    assert "No conversation found" in json.loads(run("usage", "--json"))["text"]
    session = home.session(root)
    session.reply()
    usage = json.loads(run("usage", "--json"))
    assert session.id in usage["text"]
    assert [row["label"] for row in usage["rows"]][:2] == ["Context", "Model"]
    (row,) = json.loads(run("usage", "--all", "--json"))
    assert row["label"].startswith("main · ")
    assert "claude-code" in row["text"]


@pytest.mark.parametrize(
    "command", [("usage",), ("usage", "--all"), ("usage", "--json"), ("usage", "--session", "c")]
)
def test_the_first_look_at_a_session_shows_its_cost(
    root: Path, home: ClaudeHome, command: tuple[str, ...]
) -> None:
    session = home.session(root)
    session.reply()
    session.subagent()
    shown = run(*command)
    assert "$0." in shown
    assert not any(sign in shown for sign in ("not read yet", "≥", "token-sidecar cost"))
    cost = json.loads(run("usage", "--json"))["costUsd"]
    assert cost == json.loads(run("cost", "--json"))["totals"]["costUsd"]


def test_a_new_call_is_in_the_cost_at_the_next_look(root: Path, home: ClaudeHome) -> None:
    session = home.session(root)
    session.reply()
    before = json.loads(run("usage", "--json"))["costUsd"]
    session.subagent()
    assert json.loads(run("usage", "--json"))["costUsd"] > before
    assert "≥" not in run("usage", "--all")


def old_subagent(session: claude.Transcript) -> None:
    """Write a sub-agent's file that is not among the newest files, which are read first."""
    session.subagent()
    at = (datetime.now(UTC) - timedelta(days=3)).timestamp()
    for path in (session.project / session.id).rglob("agent-*.jsonl"):
        os.utime(path, (at, at))


def test_incomplete_cost_is_reported(
    root: Path, home: ClaudeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.cli.usage.READ_SECONDS", 0.0)
    session = home.session(root)
    session.reply()
    assert "≥" not in run("usage") + run("statusline"), "these read the newest files themselves"
    old_subagent(session)
    assert "≥$0." in run("usage")
    assert "Run `token-sidecar cost`" in run("usage")
    assert " · ≥$0." in run("statusline")
    assert "≥$0." in json.loads(run("usage", "--json"))["text"]
    assert "  ≥$0." in run("usage", "--all")
    run("cost")
    assert "≥" not in run("usage") + run("statusline") + run("usage", "--all")
    assert "$0." in run("usage")


def test_only_the_session_with_unread_calls_has_an_incomplete_cost(
    root: Path, home: ClaudeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.cli.usage.READ_SECONDS", 0.0)
    complete, session = home.session(root), home.session(root)
    session.reply()
    complete.reply()
    run("cost")
    old_subagent(session)
    assert "≥" not in run("usage", "--session", complete.id)
    sums = run("statusline").split(" · ")
    assert [part for part in sums if "≥" in part] == [*sums[-2:]], "of today and of the block"
    rows = {row["id"]: row["text"] for row in json.loads(run("usage", "--all", "--json"))}
    assert "≥$0." in rows[session.id]
    assert "≥" not in rows[complete.id]


@pytest.mark.parametrize("has_prices", [True, False])
def test_sums_of_a_line_without_the_prices_of_some_calls(
    root: Path, home: ClaudeHome, *, has_prices: bool
) -> None:
    for model in ["claude-opus-5"] * has_prices + ["acme-coder"]:
        session = home.session(root)
        session.model = model
        session.reply()
    run("cost")
    line = run("statusline", told=told("s", rate_limits=None))
    sums = re.sub(r", [\d,]+ tokens/min", "", line.split(" · ", 3)[3])
    sums = re.sub(r"[\d.]+", "0", sums)
    cost = "≥$0" if has_prices else "unpriced"
    assert sums == f"{cost} today · block {cost}, 0 h 0 min left"


def test_sums_of_a_line_miss_unread_calls(root: Path, home: ClaudeHome) -> None:
    session = home.session(root)
    session.reply()
    run("cost")
    sent = told(session.id, transcript_path=str(session.path), rate_limits=None)
    assert "≥" not in run("statusline", told=sent) + run("statusline")
    old_subagent(session)
    assert run("statusline").count(" · ≥$") == 2
    assert " · block ≥$" in run("statusline")
    session.reply()
    assert " · ≥$" in run("statusline", told=sent)
    assert " · block ≥$" in run("statusline", told=sent)


def test_usage_is_printed_again_at_each_change(root: Path, home: ClaudeHome) -> None:
    session = home.session(root)
    session.reply()
    command = [sys.executable, "-P", "-m", "sidecar", "usage", "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert json.loads(process.stdout.readline())["tokens"] == home.truth.context[session.id]
            session.user()
            session.reply()
            wanted = home.truth.context[session.id]
            while json.loads(process.stdout.readline())["tokens"] != wanted:
                # The agent writes while the file is read, so other counts may be printed first.
                pass
        finally:
            process.terminate()


def test_the_line_as_json(root: Path) -> None:
    line = run("statusline", told=told("mine"))
    assert json.loads(run("statusline", "--json", told=told("mine"))) == {"text": line}


def _priced(root: Path, home: ClaudeHome) -> None:
    session = home.session(root)
    for _ in range(4):
        session.user()
        session.reply()
    config_file().write_text(
        '[[price]]\nmodels = ["claude-opus-5"]\ninput = 10.0\noutput = 50.0\ncache-read = 1.0\n'
    )


def test_costs_of_prompt_files(root: Path, home: ClaudeHome) -> None:
    _priced(root, home)
    rules = "Rules " * 100 + "\n\n@docs/style.md and `@docs/no.md` @../secret.md"
    (root / "CLAUDE.md").write_text(rules)
    (root / "docs").mkdir()
    for name in ("style", "no"):
        (root / "docs" / f"{name}.md").write_text(f"{name} is how we write")
    (root.parent / "secret.md").write_text("outside")
    (root / "AGENTS.md").write_text("Codex reads this\n")
    home.folder.joinpath("CLAUDE.md").write_text("mine, for all projects")
    rows = {row["uri"]: row for row in json.loads(run("cost", "files", "--json"))["files"]}
    ours = [root / "CLAUDE.md", root / "docs" / "style.md", home.folder / "CLAUDE.md"]
    agents = root / "AGENTS.md"
    assert set(rows) == {path.as_uri() for path in (*ours, agents)}
    opus = Tokenizers().for_model("claude-opus-5")
    reads = [tokens.read for _, tokens in home.truth.calls.values()]
    for path in ours:
        row, tokens = rows[path.as_uri()], opus.count(path.read_text())
        paid = sum(1.0 if read else 10.0 for read in reads)
        assert (row["tokens"], row["requests"]) == (tokens, len(reads))
        assert row["costUsd"] == pytest.approx(tokens * paid / 1e6)
        assert row["cachedPercent"] == 75
        head, price = row["text"].split(" in 30 days · ")
        assert head == f"~{tokens} tokens · 4 requests"
        amount = f"~${row['costUsd']:.4f}" if tokens > 100 else "<$0.001"
        assert price == f"{amount}, 75 % from cache · counted for claude-opus-5"
        assert (row["model"], row["method"]) == ("claude-opus-5", opus.method)
    unsent = rows[agents.as_uri()]
    assert (unsent["requests"], unsent["costUsd"]) == (0, None)
    assert (unsent["model"], unsent["tokens"]) == ("gpt-5", truth(agents.read_text()))
    assert "CLAUDE.md: " in run("cost", "files")
    assert "no requests since" in run("cost", "files", "--since", "2099-01-01")


def test_call_smaller_than_a_file_did_not_contain_it(root: Path, home: ClaudeHome) -> None:
    """Agents also send small requests without prompt files, for example to create titles."""
    _priced(root, home)
    prompts = sorted(tokens.prompt for _, tokens in home.truth.calls.values())
    assert prompts[0] + 1 < prompts[-1]
    text = "word " * prompts[0] + "end\n"  # one token more than the smallest prompt
    (root / "CLAUDE.md").write_text(text)
    (root / "CLAUDE.local.md").write_text("short\n")
    rows = {row["uri"]: row for row in json.loads(run("cost", "files", "--json"))["files"]}
    large = rows[(root / "CLAUDE.md").as_uri()]
    assert large["tokens"] > prompts[0]
    assert large["requests"] == sum(prompt >= large["tokens"] for prompt in prompts)
    assert rows[(root / "CLAUDE.local.md").as_uri()]["requests"] == len(prompts)


def test_files_of_agents_are_not_read_while_agents_are_disabled(
    root: Path, home: ClaudeHome
) -> None:
    _priced(root, home)
    config_file().write_text("[agents]\nenabled = false\n")
    (root / "CLAUDE.md").write_text("@style.md\n")
    (root / "style.md").write_text("style\n")
    home.folder.joinpath("CLAUDE.md").write_text("mine\n")
    (row,) = json.loads(run("cost", "files", "--json"))["files"]
    assert (row["uri"], row["requests"]) == ((root / "CLAUDE.md").as_uri(), 0)
    assert json.loads(run("usage", "--json"))["session"] is None


HOSTILE_LINES = (
    {"model": {"display_name": "\x1b[31m\x1b]0;planted\x07::error::x\u202e"}},
    {"model": {"display_name": "x" * 100_000}},
    {"cost": {"total_cost_usd": 1e308}},
    {"cost": {"total_cost_usd": -1.0}},
    {"rate_limits": {"five_hour": {"used_percentage": 1e308}}},
    {"workspace": {"project_dir": "x" * 100_000}},
    {"workspace": {"project_dir": "\0"}},
    {"session_id": "s" * 100_000},
    {"context_window": {"context_window_size": 10**30}},
    {"context_window": {"context_window_size": -1, "current_usage": {"input_tokens": 10**18}}},
)


@pytest.mark.parametrize("fields", HOSTILE_LINES, ids=range(len(HOSTILE_LINES)))
def test_a_hostile_input_is_one_short_line_of_text(root: Path, fields: dict[str, Any]) -> None:
    assert root.exists()
    line = run("statusline", told=told("s", **fields))
    assert len(line) < 300
    assert line.isprintable()
    assert not line.startswith("::")


@pytest.mark.parametrize("depth", [10**5])
def test_a_deep_input_prints_no_error(root: Path, depth: int) -> None:
    assert root.exists()
    assert run("statusline", told='{"x":' + "[" * depth + "]" * depth + "}") == ""


def test_only_the_chained_line_keeps_its_colors(root: Path) -> None:
    assert root.exists()
    fields = {"model": {"display_name": "\x1b[32mplanted"}}
    chain = f"{sys.executable} -c \"print('\\x1b[31mmine\\x1b[0m')\""
    line = run("statusline", "--chain", chain, told=told("s", **fields))
    assert "\x1b[31mmine\x1b[0m" in line
    assert "\\x1b[32mplanted" in line


def _call(model: str, tokens: int) -> dict[str, Any]:
    """Return the members of the input after a call."""
    usage = {"input_tokens": 3, "output_tokens": 500, "cache_read_input_tokens": tokens - 503}
    return {"model": {"id": model}, "usage": usage | {"cache_creation_input_tokens": None}}


def _sent(
    session: claude.Transcript, window: int | None, model: str, tokens: int | None = None
) -> dict[str, Any]:
    call = _call(model, tokens or 1_000)
    shown = {"context_window_size": window, "used_percentage": 0 if tokens is None else None}
    used = None if tokens is None else call["usage"]
    return told(
        session.id,
        transcript_path=str(session.path),
        model=call["model"],
        context_window=shown | {"current_usage": used},
    )


def _reply(session: claude.Transcript, model: str, tokens: int) -> None:
    session.model = model
    session.reply(usage=claude.usage(Tokens(3, tokens - 503, 0, 0, 500)))


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-fable-5-1", "acme-large"])
def test_window_smaller_than_a_call_is_wrong(root: Path, home: ClaudeHome, model: str) -> None:
    session = home.session(root)
    _reply(session, model, 219_313)
    _reply(session, model, 40_000)  # the conversation was rewound
    line = run("statusline", told=_sent(session, 200_000, model, 40_000))
    assert " · ctx 4 % · " in line
    assert json.loads(run("usage", "--json"))["limit"] == 1_000_000


@pytest.mark.parametrize("agents", ["enabled = true", "enabled = false"])
def test_call_larger_than_the_reported_window(root: Path, home: ClaudeHome, agents: str) -> None:
    config_file().write_text(f"[agents]\n{agents}\n")
    sent = _sent(home.session(root), 200_000, "claude-haiku-4-5", 219_313)
    assert " · ctx 21 % · " in run("statusline", told=sent)


@pytest.mark.parametrize(
    ("first", "then", "limit"),
    [
        (("claude-opus-5[1m]", 1_000_000), ("claude-haiku-4-5", 30_000), 200_000),
        (("claude-haiku-4-5", 200_000), ("claude-opus-5", 30_000), 1_000_000),
        ((None, 1_000_000), ("claude-haiku-4-5", 30_000), 200_000),
        (("claude-sonnet-4-5[1m]", 1_000_000), ("claude-sonnet-4-5", 30_000), 1_000_000),
    ],
)
def test_saved_window_belongs_to_a_model(
    root: Path, home: ClaudeHome, first: tuple[str | None, int], then: tuple[str, int], limit: int
) -> None:
    session = home.session(root)
    model, window = first
    run("statusline", told=_sent(session, window, model or "", 20_000))
    home.clock.now = datetime.now(UTC) + timedelta(seconds=2)
    _reply(session, *then)
    assert json.loads(run("usage", "--json"))["limit"] == limit


def test_size_of_a_resumed_session_comes_from_its_transcript(root: Path, home: ClaudeHome) -> None:
    session = home.session(root)
    _reply(session, "claude-opus-5", 410_000)
    for usage in (None, {"input_tokens": 0, "output_tokens": 0}):
        sent = _sent(session, 1_000_000, "claude-opus-5")
        sent["context_window"]["current_usage"] = usage
        assert " · ctx 41 % · " in run("statusline", told=sent | {"workspace": None})
    assert " · ctx 41 % · " in run("statusline", told=sent | {"context_window": None})
    session.compact()
    assert " · ctx ? · " in run("statusline", told=sent)


LIMITS = (
    ({"used_percentage": 100, "resets_at": later(minutes=-10)}, ""),
    ({"used_percentage": 100, "resets_at": later(minutes=-10) * 1000}, "5h 100 %"),
    ({"used_percentage": 100, "resets_at": later(hours=1)}, "5h 100 %, resets T"),
    ({"used_percentage": 1_779_124_800, "resets_at": later(hours=1)}, ""),
    ({"used_percentage": 1_779_124_800_000, "resets_at": None}, ""),
    ({"used_percentage": -3, "resets_at": later(hours=1)}, ""),
    ({"used_percentage": None, "resets_at": later(hours=1)}, ""),
    (None, ""),
)


@pytest.mark.parametrize(("quota", "shown"), LIMITS, ids=range(len(LIMITS)))
def test_only_current_and_plausible_limits_are_shown(
    quota: dict[str, Any] | None, shown: str
) -> None:
    week = {"used_percentage": 41, "resets_at": later(days=1)}
    line = run("statusline", told=told("s", rate_limits={"five_hour": quota, "seven_day": week}))
    texts = filter(None, (shown, "7d 41 %, resets T"))
    assert without_times(line).split(" by Claude Code · ")[1] == " · ".join(texts)


ODD_MEMBERS: tuple[dict[str, Any], ...] = (
    {"session_id": None},
    {"session_id": ["s"]},
    {"model": None},
    {"model": {"id": 7, "display_name": ["Opus"]}},
    {"workspace": None},
    {"workspace": {"project_dir": 3}},
    {"cwd": {}},
    {"cost": None},
    {"cost": {"total_cost_usd": {}}},
    {"rate_limits": []},
    {"rate_limits": {"five_hour": 5, "seven_day": None}},
    {"context_window": "none"},
    {"context_window": {"context_window_size": [], "used_percentage": {}, "current_usage": 1}},
    {"context_window": {"current_usage": {"input_tokens": {}, "cache_read_input_tokens": None}}},
)


@pytest.mark.parametrize("members", ODD_MEMBERS, ids=range(len(ODD_MEMBERS)))
def test_odd_member_does_not_show_another_session(
    root: Path, home: ClaudeHome, members: dict[str, Any]
) -> None:
    session, other = home.session(root), home.session(root)
    _reply(session, "claude-opus-5", 410_000)
    home.clock.now += timedelta(minutes=1)
    _reply(other, "claude-haiku-4-5", 10_000)
    sent = _sent(session, 1_000_000, "claude-opus-5", 410_000)
    assert "ctx 41 %" in run("statusline", told=sent | members)


OWN_PERCENTAGES = read_rows("statusline", "own_percentages")


@pytest.mark.parametrize(("model", "small", "tokens", "percent", "severity"), OWN_PERCENTAGES)
def test_percentage_that_claude_code_shows(
    root: Path,
    home: ClaudeHome,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    small: str,
    tokens: int,
    percent: int,
    severity: str,
) -> None:
    monkeypatch.setenv("CLAUDE_CODE_DISABLE_1M_CONTEXT", small)
    _reply(home.session(root), model, tokens)
    usage = json.loads(run("usage", "--json"))
    assert (usage["agentPercent"], usage["severity"]) == (percent, severity)
    assert usage["percent"] < percent
    assert f" usable ({percent} % by claude-code's count)" in run("usage")


@pytest.mark.parametrize(("window", "model", "size"), read_rows("statusline", "compaction_sizes"))
def test_size_at_which_claude_code_compacts(window: int, model: str, size: int) -> None:
    catalogue.refresh()
    assert reader_of("claude-code").compacts_at(window, model) == size


def test_agents_percentage_is_not_shown_for_the_users_own_limit(
    root: Path, home: ClaudeHome
) -> None:
    (root / ".token-sidecar.toml").write_text("[context]\nlimit = 150000\n")
    _reply(home.session(root), "claude-haiku-4-5", 100_000)
    assert json.loads(run("usage", "--json"))["agentPercent"] is None


@pytest.mark.parametrize("made", ["file", "folder is a file", "missing"])
def test_sessions_without_a_usable_state_folder(
    root: Path, home: ClaudeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    state = tmp_path / "unusable"
    if made == "file":
        state.write_text("a file where the folder should be")
    elif made == "folder is a file":
        state.mkdir()
        (state / "token-sidecar").write_text("a file where the folder should be")
    else:
        state.symlink_to(tmp_path / "file" / "below")
        (tmp_path / "file").write_text("")
    monkeypatch.delenv("TOKEN_SIDECAR_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    session = home.session(root)
    _reply(session, "claude-opus-5", 410_000)
    usage = json.loads(run("usage", "--json"))
    assert (usage["tokens"], usage["percent"]) == (410_000, 41)
    rows = {row["label"]: row["value"] for row in usage["rows"]}
    assert rows["Cost"] == "not recorded"
    assert rows["Note"].startswith(f"the ledger {state}")
    assert rows["Note"].endswith(NOT_KEPT)
    assert "`token-sidecar doctor`" in run("usage", "--all")
    assert "not read yet" not in run("usage") + run("usage", "--all")
    sent = _sent(session, 1_000_000, "claude-opus-5")
    assert "ctx 41 %" in run("statusline", told=sent)


CAPS = (
    ("soft-cap-usd = 0.01", "spent today exceeds the soft cap of $0.010"),
    ("session-soft-cap-usd = 0.01", "spent in this session exceeds the soft cap of $0.010"),
    ("workspace-hard-cap-usd = 0.01", "spent in this workspace exceeds the hard cap of $0.010"),
)


@pytest.mark.parametrize(("cap", "text"), CAPS)
def test_exceeded_cap_is_named_with_its_amount(
    root: Path, home: ClaudeHome, cap: str, text: str
) -> None:
    config_file().write_text(f"[cost]\n{cap}\n")
    session = home.session(root)
    _reply(session, "claude-opus-5", 410_000)
    run("cost")
    spent = run("usage").split("\nCost ")[1].split("\n")[0].strip()
    assert re.search(rf"\nCap +{re.escape(f'{spent} {text}.')}\n", run("usage"))
    sent = _sent(session, 1_000_000, "claude-opus-5", 410_000) | {"workspace": None}
    for line in (run("statusline"), run("statusline", told=sent | {"cwd": str(root)})):
        assert f" · {spent} {text}" in line


@pytest.mark.parametrize("newest_is_expensive", [True, False])
def test_session_cap_is_that_of_the_named_session(
    root: Path, home: ClaudeHome, newest_is_expensive: bool
) -> None:
    config_file().write_text("[cost]\nsession-soft-cap-usd = 0.05\n")
    sizes = (1_000, 410_000) if newest_is_expensive else (410_000, 1_000)
    sessions = []
    for tokens in sizes:
        sessions.append(home.session(root))
        _reply(sessions[-1], "claude-opus-5", tokens)
    run("cost")
    has_cap = ["\nCap " in run("usage", "--session", session.id) for session in sessions]
    assert has_cap == [tokens > 1_000 for tokens in sizes]


@pytest.mark.parametrize("resets_in", [timedelta(minutes=95), timedelta(hours=3), None])
def test_a_reported_reset_ends_the_block_in_every_view(
    root: Path, home: ClaudeHome, resets_in: timedelta | None
) -> None:
    """The last reset has passed, and Claude Code has not reported the next one."""
    now = datetime.now(UTC)
    resets_at = now + (resets_in or -timedelta(minutes=75))
    home.clock.now = now - timedelta(hours=3, minutes=50)
    _reply(home.session(root), "claude-opus-5", 50_000)
    home.clock.now = now - timedelta(minutes=30)
    session = home.session(root)
    _reply(session, "claude-opus-5", 90_000)
    run("cost")
    limits = {"five_hour": {"used_percentage": 23.5, "resets_at": resets_at.timestamp()}}
    sent = _sent(session, 1_000_000, "claude-opus-5", 90_000)
    sent |= {"workspace": {"project_dir": str(root)}, "rate_limits": limits}
    lines = [run("statusline", told=sent), run("statusline")]
    *_, row = json.loads(run("cost", "--by", "block", "--json"))["rows"]
    began = datetime.strptime(row["block"], "%Y-%m-%d %H:%M").astimezone(UTC)
    ends = began + timedelta(hours=5)
    if resets_in is not None:
        assert abs(ends - resets_at) < timedelta(minutes=1)
        view = json.loads(run("usage", "--json"))
        assert view["forecast"]["block"]["costUsd"] == row["costUsd"]
    else:
        assert began >= resets_at.replace(second=0, microsecond=0)
    for line in lines:
        cost, hours, minutes = re.findall(r"block (\S+), .*?(\d+) h (\d+) min left", line)[0]
        assert cost == cost_text(row["costUsd"], is_partial=row["partial"])
        left = timedelta(hours=int(hours), minutes=int(minutes))
        assert abs(ends - datetime.now(UTC) - left) < timedelta(minutes=2)


@pytest.mark.parametrize("minutes", [95, 200])
def test_a_reset_that_cannot_be_saved_ends_the_block(
    root: Path, home: ClaudeHome, minutes: int
) -> None:
    session = home.session(root)
    _reply(session, "claude-opus-5", 90_000)
    run("cost")
    (state_dir() / FILE_NAME).mkdir()  # cannot be replaced by a file
    limits = {"five_hour": {"used_percentage": 23.5, "resets_at": later(minutes=minutes)}}
    sent = _sent(session, 1_000_000, "claude-opus-5", 90_000) | {"rate_limits": limits}
    hours, rest = re.findall(r"(\d+) h (\d+) min left", run("statusline", told=sent))[0]
    assert minutes - 2 <= 60 * int(hours) + int(rest) <= minutes


@pytest.mark.parametrize("limits", [None, {}, {"five_hour": {"used_percentage": 3}}])
def test_line_of_claude_code_opens_no_file_of_another_agent(
    root: Path, home: ClaudeHome, limits: dict[str, Any] | None
) -> None:
    session = home.session(root)
    _reply(session, "claude-opus-5", 90_000)
    other = CodexHome(root.parents[1] / ".codex").thread(root)
    other.call()
    run("cost")
    sent = _sent(session, 1_000_000, "claude-opus-5", 90_000) | {"rate_limits": limits}
    sent |= {"workspace": {"project_dir": str(root)}}
    with recorded_opens(other.path) as opened:
        assert " · block " in run("statusline", told=sent)
    assert opened == []


def test_line_of_claude_code_opens_the_ledger_once(
    root: Path, home: ClaudeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = home.session(root)
    _reply(session, "claude-opus-5", 90_000)
    run("cost")
    sent = _sent(session, 1_000_000, "claude-opus-5", 90_000)
    sent |= {"workspace": {"project_dir": str(root)}}
    opened: list[Path] = []

    def connect(path: Path) -> sqlite3.Connection:
        opened.append(path)
        return real(path)

    real = ledger.connect
    monkeypatch.setattr(ledger, "connect", connect)
    assert " today · block " in run("statusline", told=sent)
    # One connection reads, and the other writes.
    assert opened == [state_dir() / ledger.FILE_NAME] * 2


def test_usage_shows_a_saved_session_without_text(tmp_path: Path) -> None:
    counter = Counter("gpt-4o", Tokenizers().for_model("gpt-4o"))
    session = Conversation("chat", counter)
    session.append([Turn(role="user", content="SECRET words")])
    state = State()
    state.save_sessions(tmp_path.as_uri(), [save_conversation(session)], {"chat"})
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
    monkeypatch.setattr("sidecar.cli.sessions_view.MAX_UNREAD_BYTES", sizes[1])
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
