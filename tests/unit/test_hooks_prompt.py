"""Tests that hooks compare the ledger's sums with the caps, and never hold up an agent."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.truth import Tokens
from sidecar.config.paths import config_file, state_dir
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostRecordParams
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.hooks.installer import hook_agents
from sidecar.hooks.prompt_hook import (
    HOW_TO_GO_ON,
    PAUSE_FILE,
    Caller,
    read_amount,
    read_caps,
)
from sidecar.operating_system import IS_WINDOWS
from tests.cases import read_rows
from tests.slow_disk import CAN_BUILD, SECONDS, build_slow_disk
from tests.unit.test_cost_caps import spend

CANARY = "the-prompt-is-nobodys-business"


class Answer(NamedTuple):
    code: int
    out: str
    err: str
    seconds: float = 0.0

    @property
    def reason(self) -> str:
        return str(json.loads(self.out)["reason"])


def ask(agent: str = "claude-code", *, env: dict[str, str] | None = None, **sent: Any) -> Answer:
    """Run the hook as an agent does."""
    values = {"session_id": "s", "cwd": str(Path.home()), "prompt": CANARY} | sent
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sidecar", "hooks", "--answer", agent],
        input=json.dumps(values), capture_output=True, text=True, check=False, timeout=60,
        env=os.environ | (env or {}),
    )  # fmt: skip
    return Answer(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def set_caps(text: str) -> None:
    config_file().write_text(f"[cost]\n{text}\n")


@pytest.fixture
def book() -> CostBook:
    book = CostBook(state_dir())
    book.prices.load()  # as before agents' files are read
    return book


def test_each_agent_gets_a_refusal_that_it_understands(book: CostBook) -> None:
    spend(book, 8.27, "file:///a", "s")
    set_caps("hard-cap-usd = 5")
    for name, agent in hook_agents().items():
        answer = ask(name)
        text = (
            "token-sidecar: $8.27 spent today exceeds the hard cap of $5.00. "
            "To go on, run `token-sidecar hooks --pause` (10 minutes) and send it again."
        )
        if agent.refusal == "exit-2":
            assert answer[:3] == (2, "", text + "\n")
        else:
            assert (answer.code, answer.err) == (0, "")
            assert json.loads(answer.out) == {"decision": agent.refusal, "reason": text}


def test_a_soft_cap_is_named_and_stops_nothing(book: CostBook) -> None:
    spend(book, 8.27, "file:///a", "s")
    set_caps("soft-cap-usd = 5")
    text = "token-sidecar: $8.27 spent today exceeds the soft cap of $5.00."
    assert json.loads(ask("codex").out) == {"systemMessage": text}
    assert ask("copilot-cli")[:3] == (2, "", text + "\n")
    assert ask("kimi-code")[:3] == (0, text + "\n", "")


@pytest.mark.parametrize(("caps", "is_refused"), read_rows("prompt_hook", "caps"))
def test_the_caps_of_the_users_settings_apply(
    caps: str, *, is_refused: bool, book: CostBook
) -> None:
    book.ledger.record_many([_call("s", 1)])
    spend(book, 7.5, "file:///b", "t")
    set_caps(caps)
    assert bool(ask().out) == is_refused


def _call(session: str, usd: int, agent: str = "claude-code", workspace: str = "") -> LedgerEvent:
    from datetime import UTC, datetime
    from decimal import Decimal

    return LedgerEvent(
        at=datetime.now(UTC), model="gpt-5", provider="openai", buckets=Buckets(input=1),
        session=session, agent=agent, workspace=workspace, request_id=f"{agent} {session} {usd}",
        reported_cost=Decimal(usd),
    )  # fmt: skip


def test_amounts_are_those_of_the_status(book: CostBook, tmp_path: Path) -> None:
    root, worktree = tmp_path / "a", tmp_path / "b"
    for folder in (root / "inner", root / ".git" / "worktrees" / "b", worktree):
        folder.mkdir(parents=True)
    (root / ".git/worktrees/b/gitdir").write_text(str(worktree / ".git"))
    (root / ".git/worktrees/b/commondir").write_text("../..")
    (worktree / ".git").write_text(f"gitdir: {root}/.git/worktrees/b")
    (root / ".git/HEAD").write_text("ref: refs/heads/topic\n")
    (root / "other/.git").mkdir(parents=True)
    places = [root.as_uri(), (root / "inner").as_uri(), worktree.as_uri(), root.as_uri() + "c"]
    places.append((root / "other").as_uri())
    for number, place in enumerate(places):
        agent = "gemini-cli" if number == 1 else "claude-code"
        call = _call(f"s{number}", 2**number, agent, place)
        on_branch = msgspec.structs.replace(
            call, branch="topic", session=f"t{number}", request_id=f"t{number}"
        )
        book.ledger.record_many([call, on_branch])
    book.folders_of({str(root / "other"): str(root / "other/.git"), "/a": "/a"})
    spend(book, 100, root.as_uri(), "s0", days_ago=3)
    from sidecar.workspace.spending import repository_folders

    folders = repository_folders(book, root)
    with book.report_reader() as connection:
        for session, agent in (("s0", "claude-code"), ("s1", "gemini-cli"), ("none", "codex")):
            caller = Caller(agent, session, str(root / "inner"), "", is_new_prompt=True)
            spent = book.spend(root.as_uri(), session, folders, "topic")
            assert spent.branch == 1 + 2 + 4
            for span in ("day", "workspace", "branch"):
                amount = read_amount(connection, span, caller)
                assert amount.value == getattr(spent, span), span
                assert amount.is_partial == (span in spent.partial), span
            own = read_amount(connection, "session", caller)
            assert own.value == {"s0": 101, "s1": 2, "none": 0}[session]
            assert own.is_partial == (session == "s1")


@pytest.mark.parametrize(
    ("caps", "answer"),
    [
        ("context-hard-cap = 0.95", {}),
        ("context-soft-cap = 1.5", {}),
        (
            "context-soft-cap = 0.9",
            {
                "systemMessage": "token-sidecar: The context is 92 % full, over the soft cap of 90 %."
            },
        ),
        (
            "context-hard-cap = 0.8",
            {
                "decision": "block",
                "reason": "token-sidecar: The context is 92 % full, over the hard cap of 80 %. "
                f"Compact it, or start a new session. {HOW_TO_GO_ON}",
            },
        ),
    ],
)
def test_a_full_context_is_named_or_stopped(
    caps: str, answer: dict[str, str], tmp_path: Path
) -> None:
    root = tmp_path / "project"
    root.mkdir()
    session = ClaudeHome(Path.home() / ".claude").session(root)
    session.user()
    reply = session.message("m", Tokens(890_000), stop_reason="end_turn")
    session.write(session.line("assistant", message=reply))
    set_caps(caps)
    sent: dict[str, Any] = {
        "session_id": session.id,
        "cwd": str(root),
        "transcript_path": str(session.path),
    }
    assert not ask(**sent).out, "nothing is known"
    command = [sys.executable, "-P", "-m", "sidecar", "hooks", "--record", session.id]
    subprocess.run([*command, "--workspace", str(root)], check=True)
    assert json.loads(ask(**sent).out or "{}") == answer
    session.user()
    assert json.loads(ask(**sent).out or "{}") == answer, "agents write the prompt first"
    session.compact()
    assert not ask(**sent).out, "the context is unknown after a compaction"


@pytest.mark.parametrize(
    ("agent", "added", "is_compaction"), read_rows("prompt_hook", "compactions")
)
def test_compactions_are_told_from_prompts(agent: str, added: str, *, is_compaction: bool) -> None:
    assert bool(re.search(hook_agents()[agent].compaction, added)) == is_compaction


def test_a_repository_changes_no_cap(book: CostBook, tmp_path: Path) -> None:
    spend(book, 8.27, "file:///a", "s")
    for caps, is_refused in (("hard-cap-usd = 100", True), ("", False)):
        set_caps("hard-cap-usd = 5" if is_refused else "")
        caps = caps or "hard-cap-usd = 0"
        (tmp_path / ".token-sidecar.toml").write_text(f"[cost]\n{caps}\n")
        assert bool(ask(cwd=str(tmp_path)).out) == is_refused


@pytest.mark.skipif(IS_WINDOWS, reason="Windows has other permissions and no FIFOs")
def test_a_hostile_folder_does_not_hold_up_the_hook(book: CostBook, tmp_path: Path) -> None:
    spend(book, 8.27, tmp_path.as_uri(), "s")
    set_caps("workspace-hard-cap-usd = 5\nbranch-hard-cap-usd = 5")
    folder = tmp_path / "inner"
    folder.mkdir()
    os.mkfifo(folder / "pyproject.toml")
    os.mkfifo(folder / ".git")
    (tmp_path / "pyproject.toml").symlink_to("/dev/zero")
    assert ask(cwd=str(folder)).seconds < SECONDS
    (folder / ".git").unlink()
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git/HEAD")
    assert "in this workspace" in ask(cwd=str(folder)).reason


@pytest.mark.parametrize("is_in_file", [True, False])
def test_caps_apply_before_files_of_agents_are_read(
    book: CostBook, tmp_path: Path, *, is_in_file: bool
) -> None:
    spend(book, 8.27, "file:///a", "s")
    set_caps("hard-cap-usd = 5")
    transcript = tmp_path / "session.jsonl"
    transcript.write_text("{}\n" * is_in_file)
    assert ask(transcript_path=str(transcript)).reason


def test_no_caps_apply_to_an_agent_that_was_started_without_them(book: CostBook) -> None:
    spend(book, 8.27, "file:///a", "s")
    set_caps("hard-cap-usd = 5")
    assert not ask(env={"TOKEN_SIDECAR_CAPS": "off"}).out


def test_a_pause_ends_after_ten_minutes(book: CostBook) -> None:
    spend(book, 8.27, "file:///a", "s")
    set_caps("hard-cap-usd = 5")
    subprocess.run([sys.executable, "-P", "-m", "sidecar", "hooks", "--pause"], check=True)
    assert "decision" not in ask().out
    now = time.time()
    os.utime(state_dir() / PAUSE_FILE, (now, now - 601))
    assert "decision" in ask().out


def test_the_rounds_of_a_turn_are_not_stopped(book: CostBook) -> None:
    spend(book, 8.27, "file:///a", "s")
    set_caps("hard-cap-usd = 5")
    assert not ask("qwen-code", prompt="").out
    assert ask("claude-code", prompt="").out, "a prompt may consist of a picture"


def no_ledger() -> None:
    shutil.rmtree(state_dir())


def damaged_ledger() -> None:
    for path in state_dir().glob("ledger.db*"):
        path.write_bytes(b"SQLite format 3\0" + b"x" * 5000)


def folder_in_its_place() -> None:
    no_ledger()
    (state_dir() / "ledger.db").mkdir(parents=True)


def broken_settings() -> None:
    config_file().write_bytes(b"[cost\nhard-cap-usd = \xff")


@pytest.mark.parametrize("fail", [no_ledger, damaged_ledger, folder_in_its_place, broken_settings])
def test_a_prompt_passes_if_the_caps_cannot_be_checked(fail: Any, book: CostBook) -> None:
    spend(book, 8.27, "file:///a", "s")
    book.close()
    set_caps("hard-cap-usd = 5")
    fail()
    for name in hook_agents():
        assert ask(name)[:3] == (0, "", "")


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'{"cwd": 3, "session_id": {}}'])
def test_a_prompt_passes_if_the_input_is_strange(data: bytes, book: CostBook) -> None:
    spend(book, 8.27, "file:///a", "s")
    set_caps("session-hard-cap-usd = 5")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sidecar", "hooks", "--answer", "codex"],
        input=data, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_locked_ledger_is_read(book: CostBook) -> None:
    spend(book, 8.27, "file:///a", "s")
    set_caps("hard-cap-usd = 5")
    with closing(sqlite3.connect(state_dir() / "ledger.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "decision" in ask().out


@pytest.mark.skipif(IS_WINDOWS, reason="Windows has other permissions and no FIFOs")
def test_a_read_only_state_folder_is_read(book: CostBook) -> None:
    spend(book, 8.27, "file:///a", "s")
    book.close()
    set_caps("hard-cap-usd = 5")
    for path in (*state_dir().iterdir(), state_dir()):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert "decision" in ask().out
    finally:
        state_dir().chmod(0o755)


@pytest.mark.skipif(not CAN_BUILD, reason="needs a C compiler for Linux")
def test_a_disk_that_does_not_respond_is_not_waited_for(book: CostBook, tmp_path: Path) -> None:
    spend(book, 8.27, "file:///a", "s")
    set_caps("hard-cap-usd = 5")
    answer = ask(env={"LD_PRELOAD": str(build_slow_disk(tmp_path))})
    assert answer[:3] == (0, "", "")
    assert answer.seconds < SECONDS - 1


def test_the_hook_imports_no_large_modules(book: CostBook, tmp_path: Path) -> None:
    spend(book, 1, "file:///a", "s")
    (tmp_path / "pyproject.toml").write_text("[tool.token-sidecar]\n")
    set_caps("hard-cap-usd = 5\nbranch-hard-cap-usd = 3\ncontext-soft-cap = 0.5")
    code = (
        "import os, sys; exit = os._exit\n"
        "os._exit = lambda code: (sys.stderr.write(' '.join(sys.modules)), exit(code))\n"
        "sys.argv = ['token-sidecar', 'hooks', '--answer', 'codex']\n"
        "from sidecar.__main__ import start; start()"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        input=json.dumps({"session_id": "s", "cwd": str(tmp_path)}),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == ""
    loaded = {name for name in done.stderr.split() if name.startswith("sidecar.")}
    assert loaded == {
        "sidecar.__main__", "sidecar.hooks", "sidecar.hooks.prompt_hook", "sidecar.config",
        "sidecar.config.paths", "sidecar.operating_system",
        # only for caps of workspaces and branches
        "sidecar.cost", "sidecar.cost.worktrees", "sidecar.agents", "sidecar.agents.branches", "sidecar.config.safe_files",
        "sidecar.config.toml", "sidecar.errors",
    }  # fmt: skip
    large = {"msgspec", "click", "httpx", "asyncio", "subprocess", "dataclasses", "inspect"}
    assert not large & set(done.stderr.split())


def test_the_prompt_is_not_stored(book: CostBook) -> None:
    spend(book, 8.27, "file:///a", "s")
    set_caps("hard-cap-usd = 5")
    assert CANARY not in "".join(map(str, ask()))
    for path in Path.home().parent.rglob("*"):
        assert not path.is_file() or CANARY.encode() not in path.read_bytes()


def test_a_recorded_call_counts_at_once(book: CostBook) -> None:
    set_caps("hard-cap-usd = 5")
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "cost": 6}
    book.record(CostRecordParams(model="gpt-5", usage=usage, session="s"))
    assert "decision" in ask().out


def test_the_settings_are_read_as_they_are_shown() -> None:
    from sidecar.config.load import load

    set_caps("soft-cap-usd = 1\nsession-hard-cap-usd = 2.5\nworkspace-soft-cap-usd = true")
    caps = load(None).settings.cost
    assert read_caps(config_file()) == {
        "day": (caps.soft_cap_usd, None),
        "session": (None, caps.session_hard_cap_usd),
    }
